// Products of few rows with an adapter's factors.
//
// However many rows and ranks are computed at a time, each sum takes its terms in the same order.

#ifndef LORAPLEX_LORA_PRODUCTS_H_
#define LORAPLEX_LORA_PRODUCTS_H_

#include <cstdint>
#include <type_traits>

#include "vectors.h"

namespace loraplex {

// h[row * h_stride + r] = sum over k of a[r * in + k] * x[row * x_stride + k]; what is read next
// is fetched from `ahead`, `ahead_step` bytes for each two vectors.
template <int Rows, int Ranks, typename T>
void dots(float* h, int64_t h_stride, const T* a, const float* x, int64_t x_stride, int64_t in,
          const char* ahead, int64_t ahead_step) {
  Floats sums[Rows][Ranks][2] = {};
  const auto add = [&](int64_t k, int chain, auto how) {
    Floats weights[Ranks];
    for (int r = 0; r < Ranks; ++r) weights[r] = how.load(a + r * in + k);
    for (int row = 0; row < Rows; ++row) {
      const Floats inputs = how.load(x + row * x_stride + k);
      for (int r = 0; r < Ranks; ++r) sums[row][r][chain] += weights[r] * inputs;
    }
  };
  int64_t k = 0;
  for (; k + 2 * kLanes <= in; k += 2 * kLanes) {
    __builtin_prefetch(ahead);
    ahead += ahead_step;
    add(k, 0, Whole());
    add(k + kLanes, 1, Whole());
  }
  in_vectors(k, in, [&](int64_t k, auto how) { add(k, 0, how); });
  for (int row = 0; row < Rows; ++row) {
    for (int r = 0; r < Ranks; ++r) {
      const Floats both = sums[row][r][0] + sums[row][r][1];
      h[row * h_stride + r] = sum_of(both);
    }
  }
}

// sums[row * sums_stride + o] += sum over i in [0, Ranks) of
//     h[row * h_stride + i] * b[i * b_stride + o], for o in [0, count)
template <int Rows, int Ranks, typename T>
void accumulate(float* sums, int64_t sums_stride, const T* b, int64_t b_stride, const float* h,
                int64_t h_stride, int64_t count, const T* ahead) {
  in_vectors(0, count, [&](int64_t o, auto how) {
    Floats weights[Ranks];
    for (int r = 0; r < Ranks; ++r) {
      __builtin_prefetch(ahead + r * b_stride + o);
      weights[r] = how.load(b + r * b_stride + o);
    }
    for (int row = 0; row < Rows; ++row) {
      Floats sum = load(sums + row * sums_stride + o);
      for (int r = 0; r < Ranks; ++r) sum += h[row * h_stride + r] * weights[r];
      store(sums + row * sums_stride + o, sum);
    }
  });
}

// y[o] = gain[o] * (y[o] + scale * sum) + offset[o], of a vector of outputs or a part of one.
template <bool HasGain, bool HasOffset>
struct Finish {
  float scale;
  const float *gain, *offset;

  template <typename T, typename How>
  void operator()(T* y, int64_t o, Floats sum, How how) const {
    Floats value = how.load(y + o) + scale * sum;
    if (HasGain) value *= how.load(gain + o);
    if (HasOffset) value += how.load(offset + o);
    how.store(y + o, value);
  }
};

// sums[row][v] += sum over r in [first, end) of h[row * rank + r] * load_from(r, v)
template <int Rows, int Vectors, typename Load>
void multiply(Floats (&sums)[Rows][Vectors], const float* h, int64_t rank, int64_t first,
              int64_t end, Load load_from) {
  for (int64_t r = first; r < end; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      const Floats weights = load_from(r, v);
      for (int row = 0; row < Rows; ++row) sums[row][v] += h[row * rank + r] * weights;
    }
  }
}

// Calls run(integral_constant<int, n>, first) for pieces of n of `count`, n at most Most.
template <int Most, typename Run>
void in_pieces(int64_t count, Run run, int64_t first = 0) {
  for (; first + Most <= count; first += Most) run(std::integral_constant<int, Most>(), first);
  if constexpr (Most > 1) in_pieces<Most / 2>(count, run, first);
}

}  // namespace loraplex

#endif  // LORAPLEX_LORA_PRODUCTS_H_
