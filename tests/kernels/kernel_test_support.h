#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backends.h"
#include "kernels/ops.h"
#include "tests/kernels/oracle_comparison.h"

namespace baton {

// Every suite of kernels runs once for each of these, CPU instruction sets and devices; one that
// the machine lacks is skipped, visibly. "emulated" are the CUDA kernels on this processor, where
// matrix products are a stand-in.
inline const auto kEveryBackend =
    ::testing::Values("plain", "avx2", "avx512bf16", "amx", "emulated", "cuda");

std::string BackendTestName(const ::testing::TestParamInfo<std::string>& info);

// An array in a backend's memory, which the host must not touch. Borrows the backend.
template <typename T>
class Array {
 public:
  Array(Backend& backend, const std::vector<T>& values) : backend_(backend), size_(values.size()) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory =
        backend.Allocate(std::max<std::size_t>(size_, 1) * sizeof(T));
    EXPECT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    Write(values);
  }

  T* data() const { return reinterpret_cast<T*>(memory_->data()); }

  // REQUIRES: as many values as at the start.
  void Write(const std::vector<T>& values) {
    EXPECT_EQ(values.size(), size_);
    const absl::Status copied = backend_.Copy({.destination = memory_->data(),
                                               .source = Bytes(values.data()),
                                               .bytes = size_ * sizeof(T),
                                               .direction = CopyDirection::kHostToDevice});
    EXPECT_TRUE(copied.ok()) << copied;
    EXPECT_TRUE(backend_.Synchronize().ok());
  }

  std::vector<T> Read() const {
    std::vector<T> values(size_);
    const absl::Status copied =
        backend_.Copy({.destination = const_cast<std::byte*>(Bytes(values.data())),
                       .source = memory_->data(),
                       .bytes = size_ * sizeof(T),
                       .direction = CopyDirection::kDeviceToHost});
    EXPECT_TRUE(copied.ok()) << copied;
    const absl::Status waited = backend_.Synchronize();
    EXPECT_TRUE(waited.ok()) << waited;
    return values;
  }

 private:
  static const std::byte* Bytes(const T* data) { return reinterpret_cast<const std::byte*>(data); }

  Backend& backend_;
  std::size_t size_;
  std::unique_ptr<DeviceMemory> memory_;
};

// A backend for the instruction set or the device that is the test's parameter.
class KernelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;

  std::unique_ptr<Backend> MakeBackend(int threads) const;
  // Kernels of kernels/cuda, on a GPU or not: heads of dimension 64 and 128, no threads.
  bool IsCuda() const { return GetParam() == "emulated" || GetParam() == "cuda"; }
  bool IsEmulated() const { return GetParam() == "emulated"; }
  Backend& backend() { return *backend_; }

  // A weight [rows, columns] with the given values, which are bf16 already.
  std::unique_ptr<PackedWeight> Pack(Backend& backend,
                                     int rows,
                                     int columns,
                                     const std::vector<float>& values);
  std::unique_ptr<RopeTable> MakeRope(Backend& backend, int head_dim, int positions);

 private:
  std::unique_ptr<Backend> backend_;
};

inline constexpr double kRopeBase = 10000;

}  // namespace baton
