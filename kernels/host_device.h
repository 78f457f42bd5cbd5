#pragma once

// Marks a function that kernels may call as well as the host. Empty where no CUDA compiler reads
// it.
#ifdef __CUDACC__
#define BATON_HOST_DEVICE __host__ __device__
#else
#define BATON_HOST_DEVICE
#endif
