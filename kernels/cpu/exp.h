// e to the power of a vector.

#ifndef LORAPLEX_EXP_H_
#define LORAPLEX_EXP_H_

#include "vectors.h"

namespace loraplex {

typedef int32_t Integers __attribute__((vector_size(kLanes * sizeof(int32_t))));

// Within two units of the last place of float32; infinite above 88.37, 0 below -87.68, NaN of NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^n e^r, and e^r is its Taylor polynomial; ln 2 is
// subtracted in two parts, of which the first has so few bits that n times it is exact. The largest
// and the smallest n that are let through have the exponents of infinity and of 0.
inline Floats exp(Floats x) {
  constexpr float kLargest = 89, kSmallest = -88;
  x = x > kLargest ? Floats{} + kLargest : x;
  x = x < kSmallest ? Floats{} + kSmallest : x;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction.
  const Floats n = (x * 1.44269504f + kRounder) - kRounder;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats sum = r * (1.0f / 5040) + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r * r + r + 1.0f;
  const Integers exponent = (__builtin_convertvector(n, Integers) + 127) << 23;
  return sum * reinterpret_cast<Floats>(exponent);
}

}  // namespace loraplex

#endif  // LORAPLEX_EXP_H_
