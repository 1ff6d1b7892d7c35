// Vectors of floats as wide as the processor's, and the two dtypes that weights have.
//
// Sums run in float32 whatever the dtype. bfloat16 is widened by a shift, so no processor needs to
// know it.

#ifndef LORAPLEX_VECTORS_H_
#define LORAPLEX_VECTORS_H_

#include <cstdint>
#include <cstring>

namespace loraplex {

// Tests compile for wider vectors than this machine's: the compiler then makes two of one.
#ifdef LORAPLEX_LANES
constexpr int64_t kLanes = LORAPLEX_LANES;
#elif defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#else
constexpr int64_t kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t Halves
    __attribute__((vector_size(kLanes * sizeof(uint16_t)), aligned(2), may_alias));

struct BFloat16 {
  uint16_t bits;
};

inline float widen(float value) { return value; }

inline float widen(BFloat16 value) {
  const uint32_t word = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &word, sizeof result);
  return result;
}

inline void narrow(float value, float& result) { result = value; }

inline void narrow(float value, BFloat16& result) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  const bool is_nan = (word & 0x7fffffff) > 0x7f800000;
  // To the nearest, to even where two are as near.
  result.bits = is_nan ? 0x7fc0 : uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }

inline Floats load(const BFloat16* from) {
  const Words words = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16;
  return reinterpret_cast<const Floats&>(words);
}

inline void store(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }

// What is left of values once they are stored as T.
template <typename T>
inline Floats rounded(Floats values) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return values;
  } else {
    const Words words = reinterpret_cast<Words>(values);
    const Words near = (words + 0x7fff + ((words >> 16) & 1)) & 0xffff0000;
    const Words bits = (words & 0x7fffffff) > 0x7f800000 ? Words{} + 0x7fc00000 : near;
    return reinterpret_cast<Floats>(bits);
  }
}

inline void store(BFloat16* to, Floats values) {
  const Words words = reinterpret_cast<Words>(rounded<BFloat16>(values)) >> 16;
  *reinterpret_cast<Halves*>(to) = __builtin_convertvector(words, Halves);
}

// How a vector, or at the end of a row a part of one, is read and written.
struct Whole {
  template <typename T>
  Floats load(const T* from) const {
    return loraplex::load(from);
  }
  template <typename T>
  void store(T* to, Floats values) const {
    loraplex::store(to, values);
  }
};

struct Part {
  int64_t count;  // The others are 0.

  template <typename T>
  Floats load(const T* from) const {
    T part[kLanes] = {};
    std::memcpy(part, from, count * sizeof(T));
    return loraplex::load(part);
  }
  template <typename T>
  void store(T* to, Floats values) const {
    T part[kLanes];
    loraplex::store(part, values);
    std::memcpy(to, part, count * sizeof(T));
  }
};

// Calls run(o, how) for each vector of [o, end), the last of which may be a part.
template <typename Run>
void in_vectors(int64_t o, int64_t end, Run run) {
  for (; o + kLanes <= end; o += kLanes) run(o, Whole());
  if (o < end) run(o, Part{end - o});
}

// Combines the halves, then their halves, and so on.
template <int Lanes, typename Combine>
float by_halves(const float* values, Combine combine) {
  if constexpr (Lanes == 1) {
    return values[0];
  } else {
    float half[Lanes / 2];
    for (int i = 0; i < Lanes / 2; ++i) half[i] = combine(values[i], values[i + Lanes / 2]);
    return by_halves<Lanes / 2>(half, combine);
  }
}

inline float sum_of(Floats values) {
  return by_halves<kLanes>(reinterpret_cast<const float*>(&values),
                           [](float a, float b) { return a + b; });
}

inline float max_of(Floats values) {
  return by_halves<kLanes>(reinterpret_cast<const float*>(&values),
                           [](float a, float b) { return b > a ? b : a; });
}

}  // namespace loraplex

#endif  // LORAPLEX_VECTORS_H_
