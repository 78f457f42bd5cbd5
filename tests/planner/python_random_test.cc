#include "planner/python_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace baton {
namespace {

using testing::ElementsAre;

// Printed by CPython 3.11.
struct Vector {
  std::uint64_t seed;
  std::vector<std::uint32_t> words;
  std::vector<double> doubles;
};

TEST(PythonRandom, GivesTheWordsAndDoublesOfPython) {
  const std::vector<Vector> vectors = {
      {0, {3626764237, 1654615998, 3255389356, 3823568514}, {}},
      {7,
       {1390851128, 4071050724, 647892279, 1695753998},
       {0.32383276483316237, 0.15084917392450192}},
      {11,
       {1942955373, 3718334796, 2404204071, 3680198571},
       {0.4523795535098186, 0.559772386080496}},
      {42,
       {2746317213, 478163327, 107420369, 3184935163},
       {0.6394267984578837, 0.025010755222666936}},
      {43,
       {165578901, 1228722198, 2990260696, 3275703684},
       {0.038551839337380045, 0.6962243226370528}},
      // Two words of seed.
      {4294967301, {675479763, 2085189291, 1213270837, 3822202474}, {}},
      {12345678901234567890u, {2199100970, 3695432519, 4002396509, 2348474455}, {}},
      {18446744073709551615u, {93740670, 1068495656, 1452108352, 2657516307}, {}},
  };
  for (const Vector& vector : vectors) {
    PythonRandom words(vector.seed);
    for (const std::uint32_t word : vector.words) {
      EXPECT_EQ(words.NextWord(), word) << "seed " << vector.seed;
    }
    PythonRandom doubles(vector.seed);
    for (const double value : vector.doubles) {
      EXPECT_EQ(doubles.NextDouble(), value) << "seed " << vector.seed;
    }
  }
}

TEST(PythonRandom, GoesOnAfterItsStateIsUsedUp) {
  PythonRandom random(7);
  for (int i = 0; i < 1500; ++i) {
    random.NextWord();
  }

  EXPECT_EQ(random.NextWord(), 4141513315u);
  EXPECT_EQ(random.NextDouble(), 0.7588049635842623);
}

TEST(PythonRandom, DrawsIntegersByRedrawing) {
  PythonRandom fours(11);
  std::vector<std::uint32_t> values;
  for (int i = 0; i < 12; ++i) {
    values.push_back(fours.Below(4));
  }
  EXPECT_THAT(values, ElementsAre(3, 3, 3, 1, 1, 3, 1, 0, 3, 2, 1, 0));

  PythonRandom mixed(7);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 8; ++i) {
    lengths.push_back(mixed.Between(150, 400));
  }
  EXPECT_THAT(lengths, ElementsAre(232, 392, 188, 251, 316, 162, 168, 360));
  values.clear();
  for (int i = 0; i < 8; ++i) {
    values.push_back(mixed.Below(40));
  }
  EXPECT_THAT(values, ElementsAre(34, 6, 23, 37, 3, 32, 13, 2));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(mixed.Below(1), 0u);  // draws, although there is nothing to choose
  }
  EXPECT_EQ(mixed.NextDouble(), 0.06985542357461894);
}

TEST(PythonRandom, KeepsToItsRange) {
  PythonRandom random(3);
  for (const std::uint32_t limit : {1u, 2u, 3u, 251u, 65'536u, 0x80000001u, 0xFFFFFFFFu}) {
    for (int i = 0; i < 1000; ++i) {
      EXPECT_LT(random.Below(limit), limit);
    }
  }
  for (int i = 0; i < 1000; ++i) {
    const double value = random.NextDouble();
    EXPECT_GE(value, 0.0);
    EXPECT_LT(value, 1.0);
  }
}

}  // namespace
}  // namespace baton
