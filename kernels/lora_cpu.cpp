// Low-rank updates of a step on a CPU: every weight is read once, at its true rank.
//
// What is added, and in which order, is told in kernels/lora.py; this is the same for rows that are
// few, where the weights' bytes are the work. Sums run in float32, in an order that depends on
// neither the other rows of the step nor the number of threads.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kBlock = 256;  // Outputs that are summed in registers and the first cache.

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t)), aligned(2), may_alias));

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

// One adapter's update of one module, as the table of the adapter has it.
struct Entry {
  int64_t a, b, rank, scale_bits;
};

// Rows [start, end) of the step; `entries` points to the table of their adapter.
struct Chunk {
  int64_t entries, start, end;
};

template <typename T>
float dot(const T* weights, const float* x, int64_t length) {
  Floats sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= length; i += 4 * kLanes) {
    for (int64_t k = 0; k < 4; ++k) {
      sums[k] += load(weights + i + k * kLanes) * load(x + i + k * kLanes);
    }
  }
  for (; i + kLanes <= length; i += kLanes) sums[0] += load(weights + i) * load(x + i);
  sums[0] += sums[1] + (sums[2] + sums[3]);
  float sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += sums[0][lane];
  for (; i < length; ++i) sum += widen(weights[i]) * x[i];
  return sum;
}

// sums[0, count) += sum over i in [0, Ranks) of h[i] * weights[i * stride + [0, count))
template <int Ranks, typename T>
void accumulate(float* sums, const T* weights, int64_t stride, const float* h, int64_t count) {
  int64_t o = 0;
  for (; o + kLanes <= count; o += kLanes) {
    Floats sum = load(sums + o);
    for (int r = 0; r < Ranks; ++r) sum += h[r] * load(weights + r * stride + o);
    *reinterpret_cast<Floats*>(sums + o) = sum;
  }
  for (; o < count; ++o) {
    for (int r = 0; r < Ranks; ++r) sums[o] += h[r] * widen(weights[r * stride + o]);
  }
}

template <typename T>
class Update {
 public:
  Update(T* y, const T* x, int64_t in, int64_t out, const Chunk* chunks, int64_t num_chunks,
         int64_t module, float* scratch)
      : y_(y), in_(in), out_(out), chunks_(chunks), num_chunks_(num_chunks), module_(module) {
    x_ = widened(x, scratch);
    shrunk_ = scratch + num_widened_;
  }

  // Thread `thread` of `num_threads` computes its share of all h = x a^T, row after row.
  void shrink(int64_t thread, int64_t num_threads) const {
    int64_t offset = 0;
    for (int64_t c = 0; c < num_chunks_; ++c) {
      const Entry& entry = entry_of(chunks_[c]);
      const T* a = reinterpret_cast<const T*>(entry.a);
      const int64_t first = entry.rank * thread / num_threads;
      const int64_t last = entry.rank * (thread + 1) / num_threads;
      const int64_t num_rows = chunks_[c].end - chunks_[c].start;
      for (int64_t r = first; r < last; ++r) {
        for (int64_t row = 0; row < num_rows; ++row) {
          shrunk_[offset + row * entry.rank + r] =
              dot(a + r * in_, x_ + (chunks_[c].start + row) * in_, in_);
        }
      }
      offset += num_rows * entry.rank;
    }
  }

  // The same of all y += scale * h b^T; `b` lies as [rank, out].
  void expand(int64_t thread, int64_t num_threads) const {
    const int64_t share = ((out_ + num_threads - 1) / num_threads + kLanes - 1) / kLanes * kLanes;
    const int64_t first = std::min(out_, thread * share);
    const int64_t last = std::min(out_, first + share);
    int64_t offset = 0;
    for (int64_t c = 0; c < num_chunks_; ++c) {
      const Entry& entry = entry_of(chunks_[c]);
      if (entry.rank == 0) continue;
      for (int64_t o = first; o < last; o += kBlock) {
        for (int64_t row = chunks_[c].start; row < chunks_[c].end; ++row) {
          const int64_t h = offset + (row - chunks_[c].start) * entry.rank;
          expand_block(entry, shrunk_ + h, y_ + row * out_, o, std::min(kBlock, last - o));
        }
      }
      offset += (chunks_[c].end - chunks_[c].start) * entry.rank;
    }
  }

 private:
  void expand_block(const Entry& entry, const float* h, T* y, int64_t o, int64_t count) const {
    const T* b = reinterpret_cast<const T*>(entry.b);
    const int32_t bits = int32_t(entry.scale_bits);
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    float sums[kBlock] = {};
    int64_t r = 0;
    for (; r + 4 <= entry.rank; r += 4) accumulate<4>(sums, b + r * out_ + o, out_, h + r, count);
    for (; r < entry.rank; ++r) accumulate<1>(sums, b + r * out_ + o, out_, h + r, count);
    for (int64_t i = 0; i < count; ++i) narrow(widen(y[o + i]) + scale * sums[i], y[o + i]);
  }

  const Entry& entry_of(const Chunk& chunk) const {
    return reinterpret_cast<const Entry*>(chunk.entries)[module_];
  }

  const float* widened(const T* x, float* scratch) {
    if constexpr (std::is_same_v<T, float>) {
      num_widened_ = 0;
      return x;
    } else {
      int64_t end = 0;
      for (int64_t c = 0; c < num_chunks_; ++c) {
        end = std::max(end, chunks_[c].end);
        const int64_t from = chunks_[c].start * in_, to = chunks_[c].end * in_;
        for (int64_t i = from; i < to; ++i) scratch[i] = widen(x[i]);
      }
      num_widened_ = end * in_;
      return scratch;
    }
  }

  T* y_;
  const float* x_;
  float* shrunk_;
  int64_t in_, out_;
  const Chunk* chunks_;
  int64_t num_chunks_, module_, num_widened_;
};

template <typename T>
void add(void* y, const void* x, int64_t in, int64_t out, const int64_t* chunks,
         int64_t num_chunks, int64_t module, float* scratch, int64_t num_threads) {
  const Update<T> update(static_cast<T*>(y), static_cast<const T*>(x), in, out,
                         reinterpret_cast<const Chunk*>(chunks), num_chunks, module, scratch);
#ifdef _OPENMP
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    update.shrink(omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
    update.expand(omp_get_thread_num(), omp_get_num_threads());
  }
#else
  update.shrink(0, 1);
  update.expand(0, 1);
#endif
}

}  // namespace

// `y` is [rows, out], `x` [rows, in], both contiguous; `chunks` [num_chunks, 3] and the tables that
// it points to are those of kernels/segments.py, but that `b` lies as [rank, out]. `scratch` holds
// what `scratch_floats` of kernels/lora_cpu.py says.
extern "C" void loraplex_add_lora_float32(void* y, const void* x, int64_t in, int64_t out,
                                          const int64_t* chunks, int64_t num_chunks,
                                          int64_t module, float* scratch, int64_t num_threads) {
  add<float>(y, x, in, out, chunks, num_chunks, module, scratch, num_threads);
}

extern "C" void loraplex_add_lora_bfloat16(void* y, const void* x, int64_t in, int64_t out,
                                           const int64_t* chunks, int64_t num_chunks,
                                           int64_t module, float* scratch, int64_t num_threads) {
  add<BFloat16>(y, x, in, out, chunks, num_chunks, module, scratch, num_threads);
}
