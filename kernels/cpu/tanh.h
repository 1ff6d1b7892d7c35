// The hyperbolic tangent of a vector.

#ifndef LORAPLEX_TANH_H_
#define LORAPLEX_TANH_H_

#include "exp.h"
#include "vectors.h"

namespace loraplex {

// Within two units of the last place of float32; NaN stays NaN.
//
// tanh |x| = (1 - e^(-2|x|)) / (1 + e^(-2|x|)) loses digits near 0, where x + x^3 p(x^2) has them;
// p has the coefficients of least relative error for |x| < 0.625.
inline Floats tanh(Floats x) {
  const Floats size = x < 0 ? -x : x;
  const Floats falling = exp(-2 * size);
  const Floats large = (1 - falling) / (1 + falling);
  const Floats square = x * x;
  Floats sum = square * -0.005704977512f + 0.02063907789f;
  sum = sum * square - 0.05373971187f;
  sum = sum * square + 0.1333144215f;
  sum = sum * square - 0.3333328194f;
  const Floats small = sum * square * size + size;
  const Floats result = size < 0.625f ? small : large;
  return x < 0 ? -result : result;
}

}  // namespace loraplex

#endif  // LORAPLEX_TANH_H_
