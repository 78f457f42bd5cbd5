#include "planner/disaggregation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baton {
namespace {

constexpr double kRdma = kCourseRdmaBytesPerSecond;
constexpr double kTcp = kCourseTcpBytesPerSecond;

struct Row {
  CourseRequest request;
  double prefill;
  double transfer_rdma;
  double transfer_tcp;
  double colocated;
  double rdma;
  double tcp;
  double gain_rdma;
  double gain_tcp;
  double ratio;
};

const Row kRows[] = {
    {{256, 100}, 6.4, 0.32, 3.2, 1006.4, 562.2756, 565.1556, 444.1244, 441.2444, 1.790},
    {{512, 200}, 12.8, 0.64, 6.4, 2012.8, 1124.5511, 1130.3111, 888.2489, 882.4889, 1.790},
    {{1024, 300}, 25.6, 1.28, 12.8, 3025.6, 1693.5467, 1705.0667, 1332.0533, 1320.5333, 1.787},
    {{2048, 400}, 51.2, 2.56, 25.6, 4051.2, 2275.9822, 2299.0222, 1775.2178, 1752.1778, 1.780},
    {{4096, 500}, 102.4, 5.12, 51.2, 5102.4, 2885.2978, 2931.3778, 2217.1022, 2171.0222, 1.768},
    {{8192, 800}, 204.8, 10.24, 102.4, 8204.8, 4659.4844, 4751.6444, 3545.3156, 3453.1556, 1.761},
    {{16384, 1200},
     409.6,
     20.48,
     204.8,
     12409.6,
     7096.7467,
     7281.0667,
     5312.8533,
     5128.5333,
     1.749},
    {{32768, 2000},
     819.2,
     40.96,
     409.6,
     20819.2,
     11971.2711,
     12339.9111,
     8847.9289,
     8479.2889,
     1.739},
};

TEST(CourseModel, GivesTheWholeTable) {
  constexpr double kDigits = 5.01e-5;
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.request.prompt_tokens);
    const double colocated = MsColocated(row.request);
    const double rdma = MsDisaggregated(row.request, kRdma);
    const double tcp = MsDisaggregated(row.request, kTcp);
    EXPECT_NEAR(PrefillMs(row.request.prompt_tokens), row.prefill, 1e-9);
    EXPECT_NEAR(KvTransferMs(row.request.prompt_tokens, kRdma), row.transfer_rdma, 1e-9);
    EXPECT_NEAR(KvTransferMs(row.request.prompt_tokens, kTcp), row.transfer_tcp, 1e-9);
    EXPECT_NEAR(colocated, row.colocated, 1e-9);
    EXPECT_NEAR(rdma, row.rdma, kDigits);
    EXPECT_NEAR(tcp, row.tcp, kDigits);
    EXPECT_NEAR(colocated - rdma, row.gain_rdma, kDigits);
    EXPECT_NEAR(colocated - tcp, row.gain_tcp, kDigits);
    EXPECT_NEAR(colocated / rdma, row.ratio, 5e-4);
  }
}

TEST(CourseModel, TransfersATokenInTheGivenTime) {
  EXPECT_DOUBLE_EQ(KvTransferMs(1, kRdma), 0.00125);
  EXPECT_DOUBLE_EQ(KvTransferMs(1, kTcp), 0.0125);
  // Of prefill: 5 % and 50 %.
  EXPECT_DOUBLE_EQ(KvTransferMs(1, kRdma) / PrefillMs(1), 0.05);
  EXPECT_DOUBLE_EQ(KvTransferMs(1, kTcp) / PrefillMs(1), 0.5);
}

TEST(CourseModel, HasItsOnlyCrossoverInTheRatioOfPromptToOutput) {
  EXPECT_NEAR(1 / kCourseColocatedDecodeTokensPerMs - 1 / kCourseDecodeTokensPerMs, 4.4444, 5e-5);
  EXPECT_NEAR(ColocationBreakEvenRatio(kRdma), 3555.6, 0.05);
  EXPECT_NEAR(ColocationBreakEvenRatio(kTcp), 355.6, 0.05);
  EXPECT_EQ(FirstColocatedPromptTokens(1, kRdma), 3556);
  EXPECT_EQ(FirstColocatedPromptTokens(1, kTcp), 356);
  for (const double link : {kRdma, kTcp, 1e9}) {
    for (const double output : {1.0, 7.0, 300.0}) {
      const double first = FirstColocatedPromptTokens(output, link);
      EXPECT_LT(MsColocated({first, output}), MsDisaggregated({first, output}, link));
      EXPECT_GE(MsColocated({first - 1, output}), MsDisaggregated({first - 1, output}, link));
    }
  }
}

TEST(CourseModel, AlwaysColocatesWithoutOutputOrWithEqualDecodeRates) {
  for (const Row& row : kRows) {
    const CourseRequest silent = {row.request.prompt_tokens, 0};
    EXPECT_LT(MsColocated(silent), MsDisaggregated(silent, kRdma));
    const double equal = MsDisaggregated(row.request, kTcp, kCourseColocatedDecodeTokensPerMs);
    EXPECT_NEAR(equal - MsColocated(row.request), row.transfer_tcp, 1e-8);
  }
  EXPECT_EQ(ColocationBreakEvenRatio(kTcp, kCourseColocatedDecodeTokensPerMs), 0);
}

TEST(CourseModel, HasNoThresholdAt512) {
  for (int prompt = 1; prompt <= 32768; prompt += 37) {
    EXPECT_LT(MsDisaggregated({double{1} * prompt, 200}, kTcp),
              MsColocated({double{1} * prompt, 200}))
        << prompt;
  }
}

TEST(CourseModel, GivesTheTimesToFirstTokenAt4096) {
  const double prefill = PrefillMs(4096);
  EXPECT_NEAR(prefill, 102.4, 1e-9);
  EXPECT_NEAR(prefill + KvTransferMs(4096, kRdma), 107.52, 1e-9);
  EXPECT_NEAR(prefill + KvTransferMs(4096, kTcp), 153.6, 1e-9);
  EXPECT_NEAR(MsDisaggregated({4096, 500}, kTcp) / MsDisaggregated({4096, 500}, kRdma), 1.016,
              5e-4);
}

TEST(LayerwiseStreaming, LeavesTheLastLayerOnAFastLink) {
  const double prefill = PrefillMs(4096);
  EXPECT_NEAR(ExposedLayerwiseMs(prefill, KvTransferMs(4096, kRdma), 80), 0.064, 1e-9);
  EXPECT_NEAR(ExposedLayerwiseMs(prefill, KvTransferMs(4096, kTcp), 80), 0.64, 1e-9);
  EXPECT_NEAR(KvTransferMs(4096, 1.25e9), 409.6, 1e-9);
  EXPECT_NEAR(ExposedLayerwiseMs(prefill, KvTransferMs(4096, 1.25e9), 80), 308.5, 0.05);
  EXPECT_NEAR(HidingBytesPerSecond(kCourseKvBytesPerToken, kCoursePrefillTokensPerMs * 1000), 5e9,
              1);
  const double at_edge = KvTransferMs(4096, 5e9);
  EXPECT_NEAR(ExposedLayerwiseMs(prefill, at_edge, 80), at_edge / 80, 1e-9);
  EXPECT_NEAR(ExposedLayerwiseMs(prefill, 50, 1), 50, 1e-9) << "one layer hides nothing";
}

TEST(CoursePool, SizesTheExercise) {
  const CoursePoolSize size = *SizeCoursePool({});

  EXPECT_NEAR(size.kv_bytes_per_request, 1.06e9, 0.005e9);
  EXPECT_EQ(size.decode_batch, 66);
  EXPECT_NEAR(size.step_ms, 28.92, 0.005);
  EXPECT_EQ(size.prefill_gpus, 3);
  EXPECT_EQ(size.decode_gpus, 2);
  EXPECT_LE(size.prefill_load / size.prefill_gpus, 0.7);
  EXPECT_NEAR(size.batch_of_one_ratio, 8.14, 0.005);
}

TEST(CoursePool, NeedsRoomForOneRequest) {
  EXPECT_FALSE(SizeCoursePool({.gpu_bytes = 70.5e9}).has_value());
}

TEST(CourseConstants, AreNotConsistent) {
  const double real = KvBytesPerToken(80, 8, 128, 1);
  EXPECT_EQ(real, 163840);
  EXPECT_NEAR(kCourseKvBytesPerToken / real, 0.76, 0.005);
  EXPECT_EQ(4096 * kCourseKvBytesPerToken, 512e6);
  EXPECT_NEAR(4096 * real, 671e6, 0.5e6);
  EXPECT_EQ(16 * kCourseKvBytesPerToken, 2'000'000);
  EXPECT_EQ(16 * real, 2'621'440);
  // 20 to 80 ms for 4,096 tokens.
  EXPECT_NEAR(KvTransferMs(4096, 25.6e9), 20, 1e-9);
  EXPECT_NEAR(KvTransferMs(4096, 6.4e9), 80, 1e-9);
  EXPECT_NEAR(DenseFlopsPerSecond(70e9, 40'000), 5600e12, 1e3);
  EXPECT_NEAR(DenseFlopsPerSecond(70e9, 40'000) / 2000e12, 2.8, 1e-9);
  EXPECT_NEAR(WeightReadBytesPerSecond(70e9, 100), 7e12, 1);
  EXPECT_NEAR(WeightReadBoundTokensPerSecond(70e9, 3e12), 42.9, 0.05);
}

TEST(CourseModel, IsMonotonicAndNeverNegative) {
  double last = -1;
  for (int prompt = 0; prompt <= 40'000; prompt += 400) {
    const double ms = MsDisaggregated({double{1} * prompt, 10}, kTcp);
    EXPECT_GT(ms, last);
    EXPECT_GE(KvTransferMs(prompt, kRdma), 0);
    EXPECT_GE(ExposedLayerwiseMs(PrefillMs(prompt), KvTransferMs(prompt, 1e9), 80), 0);
    EXPECT_GE(ms, MsDisaggregated({double{1} * prompt, 10}, kRdma));
    last = ms;
  }
}

}  // namespace
}  // namespace baton
