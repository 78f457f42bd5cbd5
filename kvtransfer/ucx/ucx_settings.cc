#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "common/log.h"
#include "kvtransfer/ucx/ucx_handles.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton::ucx {
namespace {

// Files "<device>/ports/<number>/state" say "4: ACTIVE".
bool HasActivePort(const std::filesystem::path& device) {
  std::error_code error;
  for (const auto& port : std::filesystem::directory_iterator(device / "ports", error)) {
    std::ifstream state(port.path() / "state");
    for (std::string word; state >> word;) {
      if (word == "ACTIVE") {
        return true;
      }
    }
  }
  return false;
}

void SetUnlessSet(const char* name, const char* value) {
  setenv(name, value, /*overwrite=*/0);
}

LogLevel ToLogLevel(ucs_log_level_t level) {
  if (level <= UCS_LOG_LEVEL_ERROR) {
    return LogLevel::kError;
  }
  if (level == UCS_LOG_LEVEL_WARN) {
    return LogLevel::kWarn;
  }
  return level <= UCS_LOG_LEVEL_INFO ? LogLevel::kInfo : LogLevel::kDebug;
}

// UCX prints to standard output by itself, where a server says nothing but that it is ready.
ucs_log_func_rc_t LogToOurs(const char* /*file*/,
                            unsigned /*line*/,
                            const char* /*function*/,
                            ucs_log_level_t level,
                            const ucs_log_component_config_t* /*component*/,
                            const char* message,
                            va_list arguments) {
  std::array<char, 1024> text{};  // longer ones are cut
  std::vsnprintf(text.data(), text.size(), message, arguments);
  LogEvent(ToLogLevel(level), "ucx.message", {{"text", text.data()}});
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

RdmaDevices FindRdma(const std::string& folder) {
  RdmaDevices found;
  bool active = false;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(folder, error)) {
    found.any = true;
    active = active || HasActivePort(device.path());
    std::error_code no_driver;
    found.mlx5 =
        found.mlx5 ||
        std::filesystem::read_symlink(device.path() / "device" / "driver", no_driver).filename() ==
            "mlx5_core";
  }
  if (!active) {
    found.why = found.any ? "no RDMA device with an active port" : "no RDMA device";
  }
  return found;
}

std::string ReliableTransports() {
  return FindRdma().mlx5 ? "\\rc_mlx5,\\rc_verbs" : "\\rc_verbs";
}

std::string DefaultTransports() {
  return FindRdma().any ? ReliableTransports() + ",tcp" : "tcp";
}

void SetDefaults() {
  // Naming transports that the machine lacks would only make UCX warn. Shared memory needs settings
  // of its own, and cma ends a healthy process when its peer dies.
  SetUnlessSet("UCX_TLS", DefaultTransports().c_str());
  // Five times the bandwidth of the default 8 KB; a receiver's must be at least its sender's.
  SetUnlessSet("UCX_TCP_TX_SEG_SIZE", "256k");
  SetUnlessSet("UCX_TCP_RX_SEG_SIZE", "512k");
  // So many scattered ranges are sent from where they lie; with more UCX copies them first.
  SetUnlessSet("UCX_TCP_MAX_IOV", "16");
  SetUnlessSet("UCX_KEEPALIVE_INTERVAL", "1s");
  // Else the transfer thread, and every handoff with it, stands still for as long as the kernel
  // asks for a connection to a machine that does not answer: two minutes.
  SetUnlessSet("UCX_TCP_CONN_NB", "y");
  // Else a restarted worker cannot listen on its port for a minute.
  SetUnlessSet("UCX_TCP_CM_REUSEADDR", "y");
  static const bool redirected = [] {
    ucs_log_push_handler(&LogToOurs);
    return true;
  }();
  static_cast<void>(redirected);
  // UCX took these over when its library was loaded, before main; crashes are for the debugger and
  // the sanitizers.
  static const bool disabled = [] {
    for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
      ucs_debug_disable_signal(signal);
    }
    return true;
  }();
  static_cast<void>(disabled);
}

}  // namespace baton::ucx
