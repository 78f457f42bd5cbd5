#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/sampling.h"

// The launch functions behind KernelTable, one for each operation; each is defined beside its
// kernels.
namespace baton::BATON_CUDA_NAMESPACE {

cuda::LaunchCode LaunchEmbed(const cuda::EmbedParams& params, cuda::StreamHandle stream);
cuda::LaunchCode LaunchRmsNorm(const cuda::RmsNormParams& params, cuda::StreamHandle stream);
cuda::LaunchCode LaunchSiluMultiply(const cuda::SiluMultiplyParams& params,
                                    cuda::StreamHandle stream);
cuda::LaunchCode LaunchRotateAndWriteKv(const cuda::RotateAndWriteKvParams& params,
                                        cuda::StreamHandle stream);
cuda::LaunchCode LaunchDecodeAttention(const cuda::DecodeAttentionParams& params,
                                       cuda::StreamHandle stream);
cuda::LaunchCode LaunchPrefillAttention(const cuda::PrefillAttentionParams& params,
                                        cuda::StreamHandle stream);
cuda::LaunchCode LaunchSelectTokens(const cuda::SamplingParams& params, cuda::StreamHandle stream);
cuda::LaunchCode LaunchGatherBlocks(const cuda::BlockCopyParams& params, cuda::StreamHandle stream);
cuda::LaunchCode LaunchScatterBlocks(const cuda::BlockCopyParams& params,
                                     cuda::StreamHandle stream);

}  // namespace baton::BATON_CUDA_NAMESPACE
