#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "tests/kernels/cuda/ptx_kernels.h"

namespace baton {
namespace BATON_CUDA_NAMESPACE {
namespace {

constexpr int kWarp = 32;

template <class T>
__global__ void ToFloatKernel(const std::uint16_t* bits, float* values, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) {
    values[i] = ToFloat(T{bits[i]});
  }
}

template <class T>
__global__ void FromFloatKernel(const float* values, std::uint16_t* bits, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) {
    bits[i] = FromFloat<T>(values[i]).bits;
  }
}

template <class T>
__global__ void PackKernel(const float* values, unsigned* pairs, float* unpacked, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) {
    pairs[i] = PackPair<T>(values[2 * i], values[2 * i + 1]);
    const float2 pair = UnpackPair<T>(pairs[i]);
    unpacked[2 * i] = pair.x;
    unpacked[2 * i + 1] = pair.y;
  }
}

template <class T>
__global__ void MultiplyTilesKernel(const unsigned* a,
                                    const unsigned* b,
                                    const float* c,
                                    float* d) {
  const unsigned lane = threadIdx.x;
  const unsigned my_a[4] = {a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]};
  const unsigned my_b[2] = {b[lane * 2], b[lane * 2 + 1]};
  float sums[4] = {c[lane * 4], c[lane * 4 + 1], c[lane * 4 + 2], c[lane * 4 + 3]};
  MultiplyTiles<T>(sums, my_a, my_b);
  for (unsigned i = 0; i < 4; ++i) {
    d[lane * 4 + i] = sums[i];
  }
}

template <int kMatrices, bool kTransposed>
__global__ void LoadMatricesKernel(const std::uint16_t* elements,
                                   int rows,
                                   const int* row_of,
                                   unsigned* loaded) {
  std::uint16_t* const shared = DynamicShared<std::uint16_t>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < rows * 8; i += kWarp) {
    shared[i] = elements[i];
  }
  __syncthreads();
  unsigned r[kMatrices];
  // Lanes that name no row give an address that must not be looked at.
  const void* const row = lane < kMatrices * 8 ? shared + row_of[lane] * 8 : nullptr;
  if constexpr (kMatrices == 4 && kTransposed) {
    LoadMatrices4Transposed(r, row);
  } else if constexpr (kMatrices == 4) {
    LoadMatrices4(r, row);
  } else if constexpr (kTransposed) {
    LoadMatrices2Transposed(r, row);
  } else {
    LoadMatrices2(r, row);
  }
  for (int m = 0; m < kMatrices; ++m) {
    loaded[lane * kMatrices + m] = r[m];
  }
}

template <int kKeptGroups>
__global__ void CopyAsyncKernel(const std::uint32_t* source,
                                const int* source_bytes,
                                int pieces,
                                std::uint32_t* seen) {
  std::uint32_t* const shared = DynamicShared<std::uint32_t>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < pieces; ++i) {
      CopyAsync16(shared + i * 4, source + i * 4, source_bytes[i]);
      CommitCopies();
    }
    WaitForCopies<kKeptGroups>();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < pieces * 4; i += kWarp) {
    seen[i] = shared[i];
  }
}

__global__ void Exp2Kernel(const float* x, float* y, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarp) {
    y[i] = Exp2(x[i]);
  }
}

template <class... P>
cuda::LaunchCode LaunchWarp(void (*kernel)(P...),
                            int shared_bytes,
                            std::type_identity_t<P>... arguments) {
  return Launch(kernel, dim3(1), dim3(kWarp), static_cast<std::size_t>(shared_bytes), nullptr,
                arguments...);
}

cuda::LaunchCode LaunchToFloat(cuda::Element element,
                               const std::uint16_t* bits,
                               float* values,
                               int count) {
  return WithElement(element, [=](auto type) {
    return LaunchWarp(&ToFloatKernel<decltype(type)>, 0, bits, values, count);
  });
}

cuda::LaunchCode LaunchFromFloat(cuda::Element element,
                                 const float* values,
                                 std::uint16_t* bits,
                                 int count) {
  return WithElement(element, [=](auto type) {
    return LaunchWarp(&FromFloatKernel<decltype(type)>, 0, values, bits, count);
  });
}

cuda::LaunchCode LaunchPack(
    cuda::Element element, const float* values, unsigned* pairs, float* unpacked, int count) {
  return WithElement(element, [=](auto type) {
    return LaunchWarp(&PackKernel<decltype(type)>, 0, values, pairs, unpacked, count);
  });
}

cuda::LaunchCode LaunchMultiplyTiles(
    cuda::Element element, const unsigned* a, const unsigned* b, const float* c, float* d) {
  return WithElement(element, [=](auto type) {
    return LaunchWarp(&MultiplyTilesKernel<decltype(type)>, 0, a, b, c, d);
  });
}

cuda::LaunchCode LaunchLoadMatrices(int matrices,
                                    bool transposed,
                                    const std::uint16_t* elements,
                                    int rows,
                                    const int* row_of,
                                    unsigned* loaded) {
  auto* const kernel =
      matrices == 4 ? transposed ? &LoadMatricesKernel<4, true> : &LoadMatricesKernel<4, false>
      : transposed ? &LoadMatricesKernel<2, true>
                    : &LoadMatricesKernel<2, false>;
  return LaunchWarp(kernel, rows * 16, elements, rows, row_of, loaded);
}

cuda::LaunchCode LaunchCopyAsync(int kept_groups,
                                 const std::uint32_t* source,
                                 const int* source_bytes,
                                 int pieces,
                                 std::uint32_t* seen) {
  constexpr decltype(&CopyAsyncKernel<0>) kKernels[] = {&CopyAsyncKernel<0>, &CopyAsyncKernel<1>,
                                                        &CopyAsyncKernel<2>, &CopyAsyncKernel<3>,
                                                        &CopyAsyncKernel<4>};
  return LaunchWarp(kKernels[kept_groups], pieces * 16, source, source_bytes, pieces, seen);
}

cuda::LaunchCode LaunchExp2(const float* x, float* y, int count) {
  return LaunchWarp(&Exp2Kernel, 0, x, y, count);
}

constexpr PtxKernels kKernels = {
    .to_float = &LaunchToFloat,
    .from_float = &LaunchFromFloat,
    .pack = &LaunchPack,
    .multiply_tiles = &LaunchMultiplyTiles,
    .load_matrices = &LaunchLoadMatrices,
    .copy_async = &LaunchCopyAsync,
    .exp2 = &LaunchExp2,
};

}  // namespace
}  // namespace BATON_CUDA_NAMESPACE

#ifdef BATON_EMULATE_CUDA
const PtxKernels& EmulatedPtxKernels() {
  return BATON_CUDA_NAMESPACE::kKernels;
}
#else
const PtxKernels& GpuPtxKernels() {
  return BATON_CUDA_NAMESPACE::kKernels;
}
#endif

}  // namespace baton
