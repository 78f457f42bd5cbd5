#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/cuda/kernel_table.h"

#ifdef BATON_TEST_ON_GPU
#include <cuda_runtime_api.h>

#include <cstdio>
#endif

// What direct tests of the kernels in kernels/cuda need of the machine. The same test source runs
// on the emulator, where device memory is host memory, and on a GPU (BATON_TEST_ON_GPU, built by
// tests/gpu/run.sh). Kernels run on the default stream, StreamHandle{}. Needs neither Abseil nor
// the rest of the tree.
namespace baton {

#ifdef BATON_TEST_ON_GPU

inline const cuda::KernelTable& KernelsUnderTest() {
  return cuda::GpuKernels();
}

// A test cannot go on after an error of the device: later calls would fail for the same reason.
inline void CheckDevice(cudaError_t code, const char* what) {
  if (code != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    std::abort();
  }
}

// Returns when all kernels have ended.
inline void WaitForDevice() {
  CheckDevice(cudaDeviceSynchronize(), "wait for the device");
}

#else

inline const cuda::KernelTable& KernelsUnderTest() {
  return emulated::Kernels();
}

// Kernels on the emulator's default stream have ended when their launch returns.
inline void WaitForDevice() {}

#endif

// An array in device memory, aligned to 256 bytes. Exactly as long as it says, so that an address
// sanitizer under the emulator, or compute-sanitizer on a GPU, sees a read past its end.
//
// Not thread-safe.
template <typename T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Every byte is `fill`; 0xff makes floats of any width NaN, and indices -1.
  explicit DeviceArray(std::size_t count, int fill = 0xff) : count_(count), data_(Make(count)) {
#ifdef BATON_TEST_ON_GPU
    CheckDevice(cudaMemset(data_.get(), fill, bytes()), "fill");
#else
    std::memset(static_cast<void*>(data_.get()), fill, bytes());
#endif
  }

  explicit DeviceArray(const std::vector<T>& values)
      : count_(values.size()), data_(Make(values.size())) {
    Upload(values);
  }

  T* data() const {
    return data_.get();
  }
  std::size_t size() const {
    return count_;
  }

  // REQUIRES: values.size() == size()
  void Upload(const std::vector<T>& values) {
    WaitForDevice();
#ifdef BATON_TEST_ON_GPU
    CheckDevice(cudaMemcpy(data_.get(), values.data(), bytes(), cudaMemcpyHostToDevice), "upload");
#else
    std::copy(values.begin(), values.end(), data_.get());
#endif
  }

  // Waits for the device.
  std::vector<T> Download() const {
    WaitForDevice();
    std::vector<T> values(count_);
#ifdef BATON_TEST_ON_GPU
    CheckDevice(cudaMemcpy(values.data(), data_.get(), bytes(), cudaMemcpyDeviceToHost),
                "download");
#else
    std::copy_n(data_.get(), count_, values.begin());
#endif
    return values;
  }

 private:
  struct Free {
    void operator()(T* memory) const {
#ifdef BATON_TEST_ON_GPU
      cudaFree(memory);
#else
      ::operator delete(memory, kAlignment);
#endif
    }
  };
  static constexpr std::align_val_t kAlignment{256};

  static T* Make(std::size_t count) {
#ifdef BATON_TEST_ON_GPU
    void* memory = nullptr;
    CheckDevice(cudaMalloc(&memory, count * sizeof(T)), "allocate");
    return static_cast<T*>(memory);
#else
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
#endif
  }

  std::size_t bytes() const {
    return count_ * sizeof(T);
  }

  std::size_t count_;
  std::unique_ptr<T, Free> data_;
};

}  // namespace baton
