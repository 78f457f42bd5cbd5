#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"

// The only file with PTX: instructions of sm_80 that C++ has no name for. Each has a body for the
// emulator that does to every lane what the instruction does; tests/kernels/cuda/ptx_test.cc holds
// both to the layouts below.
//
// Matrix instructions are for whole warps. With g = lane / 4 and t = lane % 4, a lane holds (PTX,
// "Matrix Fragments for mma.m16n8k16"), pairs with the first element in the lower half of the
// register:
//
//   A [16, 16]  a[0]: row g, columns 2t and 2t+1    a[1]: row g+8    a[2]: row g, columns +8 a[3]:
//   row g+8, columns +8 B [16, 8]   b[0]: rows 2t and 2t+1, column g    b[1]: rows +8 D [16, 8]
//   d[0], d[1]: row g, columns 2t and 2t+1    d[2], d[3]: row g+8
namespace baton::BATON_CUDA_NAMESPACE {

#ifndef BATON_EMULATE_CUDA

__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#endif

// d += A B, products of T (BFloat16 or Half), sums in float.
template <class T>
__device__ __forceinline__ void MultiplyTiles(float (&d)[4],
                                              const unsigned (&a)[4],
                                              const unsigned (&b)[2]);

template <>
__device__ __forceinline__ void MultiplyTiles<BFloat16>(float (&d)[4],
                                                        const unsigned (&a)[4],
                                                        const unsigned (&b)[2]) {
#ifdef BATON_EMULATE_CUDA
  emulated::MultiplyTiles(emulated::TileElement::kBFloat16, d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

template <>
__device__ __forceinline__ void MultiplyTiles<Half>(float (&d)[4],
                                                    const unsigned (&a)[4],
                                                    const unsigned (&b)[2]) {
#ifdef BATON_EMULATE_CUDA
  emulated::MultiplyTiles(emulated::TileElement::kHalf, d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Loads 8x8 matrices of 16-bit elements from shared memory: lane i names row i % 8 of matrix i / 8,
// 16 bytes on a multiple of 16. Afterwards r[m] of a lane is row g, columns 2t and 2t+1 of matrix
// m; of its transpose with LoadMatrices...Transposed, which is rows 2t and 2t+1, column g of what
// lies in memory.
__device__ __forceinline__ void LoadMatrices4(unsigned (&r)[4], const void* row) {
#ifdef BATON_EMULATE_CUDA
  emulated::LoadMatrices(r, 4, row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
#endif
}

__device__ __forceinline__ void LoadMatrices4Transposed(unsigned (&r)[4], const void* row) {
#ifdef BATON_EMULATE_CUDA
  emulated::LoadMatrices(r, 4, row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
#endif
}

// Rows come from lanes 0 to 15; what the others name is not looked at.
__device__ __forceinline__ void LoadMatrices2(unsigned (&r)[2], const void* row) {
#ifdef BATON_EMULATE_CUDA
  emulated::LoadMatrices(r, 2, row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
#endif
}

__device__ __forceinline__ void LoadMatrices2Transposed(unsigned (&r)[2], const void* row) {
#ifdef BATON_EMULATE_CUDA
  emulated::LoadMatrices(r, 2, row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
#endif
}

// Copies 16 bytes from global to shared memory, both on a multiple of 16, past the L1 cache. The
// first `source_bytes` (0 to 16) are read, the rest becomes zero. The target may change at any time
// until a wait covers the copy; before others read it, a barrier must follow the wait.
__device__ __forceinline__ void CopyAsync16(void* shared,
                                            const void* global,
                                            int source_bytes = 16) {
#ifdef BATON_EMULATE_CUDA
  emulated::CopyAsync16(shared, global, source_bytes);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(source_bytes)
               : "memory");
#endif
}

// Closes a group: the copies that this thread has issued since the last one, possibly none.
__device__ __forceinline__ void CommitCopies() {
#ifdef BATON_EMULATE_CUDA
  emulated::CommitAsyncCopies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the newest kGroups of this thread's closed groups are on their way.
template <int kGroups>
__device__ __forceinline__ void WaitForCopies() {
#ifdef BATON_EMULATE_CUDA
  emulated::WaitForCopies(kGroups);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// 2^x with a relative error of about 2^-22; 0 where the result would be subnormal, 0 for minus
// infinity.
__device__ __forceinline__ float Exp2(float x) {
#ifdef BATON_EMULATE_CUDA
  return emulated::Exp2(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

}  // namespace baton::BATON_CUDA_NAMESPACE
