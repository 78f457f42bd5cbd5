# shellcheck shell=bash
# Shared by the scripts here: sourced, never run.

# shellcheck disable=SC2034
NO_GPU="no NVIDIA GPU on this machine: nothing was checked"

# Whether a GPU can be used here: the driver's control device, and a device to control.
have_gpu() {
  [[ -e /dev/nvidiactl ]] && compgen -G '/dev/nvidia[0-9]*' >/dev/null
}
