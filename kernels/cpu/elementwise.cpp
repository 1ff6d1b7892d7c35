// What a decoder layer computes between its matrix products and its attention.
//
// The mathematics is told in kernels/elementwise.py. Each row is computed by one thread, in an
// order that depends on its width alone. In bfloat16 intermediate results are rounded where the models'
// own code rounds them.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "exp.h"
#include "vectors.h"

namespace {

using namespace loraplex;

// Values for which a second thread is worth being woken.
constexpr int64_t kShared = 1 << 15;

template <typename Each>
inline void for_rows(int64_t num_rows, int64_t width, int64_t num_threads, Each each) {
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && num_rows * width > kShared)
  for (int64_t row = 0; row < num_rows; ++row) each(row);
}

struct Norm {
  const float* gain;  // none: nothing is normalised
  int64_t width;
  float eps;
  bool rounds_first;
};

template <typename T>
float inverse_root(const T* x, int64_t width, float eps) {
  Floats sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int64_t k = 0; k < 4; ++k) {
      const Floats value = load(x + i + k * kLanes);
      sums[k] += value * value;
    }
  }
  in_vectors(i, width, [&](int64_t at, auto how) {
    const Floats value = how.load(x + at);
    sums[0] += value * value;
  });
  sums[0] += sums[1] + (sums[2] + sums[3]);
  return 1.0f / std::sqrt(sum_of(sums[0]) / float(width) + eps);
}

template <typename T, typename How>
inline Floats scaled(Floats value, float inverse, const Norm& norm, int64_t i, How how) {
  value *= inverse;
  if (norm.rounds_first) value = rounded<T>(value);
  return value * how.load(norm.gain + i);
}

template <typename T>
void normalise(T* y, const T* x, const Norm& norm) {
  const float inverse = inverse_root(x, norm.width, norm.eps);
  in_vectors(0, norm.width, [&](int64_t i, auto how) {
    how.store(y + i, scaled<T>(how.load(x + i), inverse, norm, i, how));
  });
}

// h = residual + scale * x, where x is normalised first if `before` has a gain.
template <typename T>
void add(T* h, const T* x, const T* residual, float scale, const Norm& before) {
  const float inverse = before.gain ? inverse_root(x, before.width, before.eps) : 1.0f;
  in_vectors(0, before.width, [&](int64_t i, auto how) {
    Floats value = how.load(x + i);
    if (before.gain) value = rounded<T>(scaled<T>(value, inverse, before, i, how));
    if (scale != 1.0f) value = rounded<T>(value * scale);
    how.store(h + i, how.load(residual + i) + value);
  });
}

// Products are rounded where the table has the dtype of the rows, as it does in most models.
template <typename Table, typename How>
inline Floats turned(Floats x, Floats other, const Table* cos, const Table* sin, How how) {
  return rounded<Table>(x * how.load(cos)) + rounded<Table>(other * how.load(sin));
}

template <typename T, typename Table>
void rotate(T* x, const Table* cos, const Table* sin, int64_t rotated) {
  const int64_t half = rotated / 2;
  in_vectors(0, half, [&](int64_t i, auto how) {
    const Floats low = how.load(x + i), high = how.load(x + half + i);
    how.store(x + i, turned(low, -high, cos + i, sin + i, how));
    how.store(x + half + i, turned(high, low, cos + half + i, sin + half + i, how));
  });
}

struct Heads {
  void* x;
  int64_t width, stride;  // of a row, in values
  Norm norm;
};

enum Activation : int64_t { kSilu, kGeluTanh, kRelu, kReluSquared };

template <Activation activation>
inline Floats activated(Floats x) {
  if constexpr (activation == kSilu) return x / (1.0f + exp(-x));
  if constexpr (activation == kGeluTanh) {
    // 1 + tanh(u) = 2 / (1 + e^-2u)
    const Floats u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp(-2.0f * u));
  }
  const Floats positive = x < 0.0f ? Floats{} : x;
  return activation == kRelu ? positive : positive * positive;
}

template <Activation activation, typename T>
void gate_row(T* y, const T* gate, const T* up, int64_t width) {
  in_vectors(0, width, [&](int64_t i, auto how) {
    const Floats value = rounded<T>(activated<activation>(how.load(gate + i)));
    how.store(y + i, value * how.load(up + i));
  });
}

enum Dtype : int64_t { kFloat32, kBFloat16 };

// Calls `call` with a value of the dtype.
template <typename Call>
void with_dtype(int64_t dtype, Call call) {
  dtype == kFloat32 ? call(0.0f) : call(BFloat16{});
}

template <typename Call>
void with_activation(int64_t activation, Call call) {
  switch (activation) {
    case kSilu: return call(std::integral_constant<Activation, kSilu>{});
    case kGeluTanh: return call(std::integral_constant<Activation, kGeluTanh>{});
    case kRelu: return call(std::integral_constant<Activation, kRelu>{});
    case kReluSquared: return call(std::integral_constant<Activation, kReluSquared>{});
  }
}

}  // namespace

// `dtype` is that of rows, 0 float32 and 1 bfloat16. Rows are contiguous but where a stride, in
// values, is given. A gain is `[width]`; a null gain leaves its norm out.

extern "C" void loraplex_rms_norm(int64_t dtype, void* y, const void* x, int64_t num_rows,
                                  int64_t width, const float* gain, float eps, bool rounds_first,
                                  int64_t num_threads) {
  const Norm norm{gain, width, eps, rounds_first};
  with_dtype(dtype, [=](auto value) {
    using T = decltype(value);
    for_rows(num_rows, width, num_threads, [=](int64_t row) {
      normalise(static_cast<T*>(y) + row * width, static_cast<const T*>(x) + row * width, norm);
    });
  });
}

extern "C" void loraplex_add_norm(int64_t dtype, void* y, void* h, const void* x,
                                  const void* residual, int64_t num_rows, int64_t width,
                                  float scale, const float* gain_before, float eps_before,
                                  bool rounds_first_before, const float* gain_after,
                                  float eps_after, bool rounds_first_after, int64_t num_threads) {
  const Norm before{gain_before, width, eps_before, rounds_first_before};
  const Norm after{gain_after, width, eps_after, rounds_first_after};
  with_dtype(dtype, [=](auto value) {
    using T = decltype(value);
    for_rows(num_rows, width, num_threads, [=](int64_t row) {
      const int64_t at = row * width;
      T* const sum = static_cast<T*>(h) + at;
      add(sum, static_cast<const T*>(x) + at, static_cast<const T*>(residual) + at, scale, before);
      if (after.gain) normalise(static_cast<T*>(y) + at, sum, after);
    });
  });
}

// `q` is [num_rows, q_heads, dim] and `k` [num_rows, k_heads, dim], a row's heads side by side;
// their norms run over so many values of a row. `cos` and `sin` are [num_rows, rotated] of `table_dtype`.
extern "C" void loraplex_rotary(int64_t dtype, int64_t num_rows, int64_t dim,  //
                                void* q, int64_t q_heads, int64_t q_stride, int64_t q_norm_width,
                                const float* q_gain, float q_eps, bool q_rounds_first,  //
                                void* k, int64_t k_heads, int64_t k_stride, int64_t k_norm_width,
                                const float* k_gain, float k_eps, bool k_rounds_first,
                                int64_t table_dtype, const void* cos, const void* sin,
                                int64_t rotated, int64_t num_threads) {
  const Heads heads[] = {
      {q, q_heads * dim, q_stride, {q_gain, q_norm_width, q_eps, q_rounds_first}},
      {k, k_heads * dim, k_stride, {k_gain, k_norm_width, k_eps, k_rounds_first}},
  };
  with_dtype(dtype, [&](auto value) {
    using T = decltype(value);
    with_dtype(table_dtype, [&](auto entry) {
      using Table = decltype(entry);
      for_rows(num_rows, (q_heads + k_heads) * dim, num_threads, [&](int64_t row) {
        const Table* const cosines = static_cast<const Table*>(cos) + row * rotated;
        const Table* const sines = static_cast<const Table*>(sin) + row * rotated;
        for (const Heads& each : heads) {
          T* const x = static_cast<T*>(each.x) + row * each.stride;
          for (int64_t i = 0; each.norm.gain && i < each.width; i += each.norm.width) {
            normalise(x + i, x + i, each.norm);
          }
          for (int64_t i = 0; i < each.width; i += dim) rotate(x + i, cosines, sines, rotated);
        }
      });
    });
  });
}

extern "C" void loraplex_gated(int64_t dtype, void* y, const void* gate, const void* up,
                               int64_t activation, int64_t num_rows, int64_t width,
                               int64_t gate_stride, int64_t up_stride, int64_t num_threads) {
  with_dtype(dtype, [=](auto value) {
    using T = decltype(value);
    with_activation(activation, [=](auto which) {
      for_rows(num_rows, width, num_threads, [=](int64_t row) {
        gate_row<which>(static_cast<T*>(y) + row * width,
                        static_cast<const T*>(gate) + row * gate_stride,
                        static_cast<const T*>(up) + row * up_stride, width);
      });
    });
  });
}
