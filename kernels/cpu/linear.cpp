// Dense layers on a CPU: y = x W^T + bias, with the weights packed for the registers.
//
// Weights lie as [block of inputs][panel of outputs][input][output], in the order in which they are
// read. A tile of up to kRows rows holds its sums of a panel in registers while it walks through a
// block's inputs. Each output is one sum in float32, in the order of the inputs, whatever the other
// rows, the blocks and the threads are: a row's bits depend on none of them.
//
// The blocks are those of K. Goto and R. A. van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", ACM TOMS 34(3), 2008, but that few rows are the common case: weights then come
// from memory, so while tiles compute, they fetch what is computed next into the second cache.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "vectors.h"

namespace {

using namespace loraplex;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of a pair comes first");

constexpr int64_t kRows = 6;                        // Of a tile.
constexpr int64_t kVectors = kLanes == 16 ? 4 : 2;  // Of a panel: with the rows, all registers.
constexpr int64_t kPanelOutputs = kVectors * kLanes;       // Outputs of a panel.
constexpr int64_t kBlockIn = 1024;                  // Inputs for which a panel stays in the cache.
constexpr int64_t kBlockRows = 96;                  // Rows whose inputs stay beside it.
constexpr int64_t kLine = 64;                       // Bytes of a cache's line, where not longer.

// A call of fewer products stays on one thread: waking another takes as long. Reading weights takes
// as long as multiplying them with so many rows.
constexpr int64_t kFewProducts = 1 << 19;
constexpr int64_t kReadRows = 8;

// One call; strides are those of rows. `sums` holds what the blocks of inputs so far come to.
template <typename T>
struct Call {
  const T *weights, *bias;
  const float* x;
  float* sums;
  T* y;
  int64_t in, out, rows, x_stride, sums_stride, y_stride;
};

// A panel's part in a block of inputs.
template <typename T>
struct Part {
  const T* weights;
  int64_t first_in, num_in, first_out, num_out;
};

// A share of the part that comes next: a tile fetches it while it computes, `stride` weights for
// each of its inputs.
template <typename T>
struct Fetch {
  const T* weights;
  int64_t stride;

  void operator()(int64_t i) const {
    constexpr int64_t kLines = std::max<int64_t>(1, kPanelOutputs * sizeof(T) / kLine);
#pragma GCC unroll 4
    for (int64_t line = 0; line < kLines; ++line) {
      __builtin_prefetch(weights + i * stride + line * stride / kLines, 0, 2);
    }
  }
};

// Loads a panel's weights of one input. Two vectors of bfloat16 lie as one of pairs, of which each
// half is widened by one instruction.
inline void load_weights(const float* from, Floats (&to)[kVectors]) {
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v) to[v] = load(from + v * kLanes);
}

inline void load_weights(const BFloat16* from, Floats (&to)[kVectors]) {
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; v += 2) {
    Words pairs;
    std::memcpy(&pairs, from + v * kLanes, sizeof pairs);
    const Words low = pairs << 16, high = pairs & 0xffff0000u;
    to[v] = reinterpret_cast<const Floats&>(low);
    to[v + 1] = reinterpret_cast<const Floats&>(high);
  }
}

// Takes one row's sums of a part to where they are added to, or to y.
template <typename T>
void keep(const Call<T>& call, const Part<T>& part, int64_t row, const float* sums) {
  if (part.first_in + part.num_in < call.in) {
    std::copy(sums, sums + part.num_out, call.sums + row * call.sums_stride + part.first_out);
    return;
  }
  T* const y = call.y + row * call.y_stride + part.first_out;
  const T* const bias = call.bias ? call.bias + part.first_out : nullptr;
  for (int64_t o = 0; o < part.num_out; ++o) narrow(sums[o] + (bias ? widen(bias[o]) : 0), y[o]);
}

// Computes Rows rows of one part, from `row` on.
template <typename T, int64_t Rows>
void tile(const Call<T>& call, const Part<T>& part, const Fetch<T>& fetch, int64_t row) {
  float kept[Rows][kPanelOutputs];
  Floats sums[Rows][kVectors] = {};
  if (part.first_in > 0) {
    for (int64_t r = 0; r < Rows; ++r) {
      const float* from = call.sums + (row + r) * call.sums_stride + part.first_out;
      std::fill(std::copy(from, from + part.num_out, kept[r]), kept[r] + kPanelOutputs, 0);
    }
#pragma GCC unroll 6
    for (int64_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) sums[r][v] = load(kept[r] + v * kLanes);
    }
  }
  const float* const x = call.x + row * call.x_stride + part.first_in;
  for (int64_t i = 0; i < part.num_in; ++i) {
    if constexpr (Rows > 1) fetch(i);  // One row reads as fast as the processor's own fetching.
    Floats weights[kVectors];
    load_weights(part.weights + i * kPanelOutputs, weights);
#pragma GCC unroll 6
    for (int64_t r = 0; r < Rows; ++r) {
      const float value = x[r * call.x_stride + i];
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) sums[r][v] += value * weights[v];
    }
  }
#pragma GCC unroll 6
  for (int64_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) store(kept[r] + v * kLanes, sums[r][v]);
  }
  for (int64_t r = 0; r < Rows; ++r) keep(call, part, row + r, kept[r]);
}

// Computes rows [first, last) of one part in tiles of about one height; `next` is what comes next.
template <typename T>
void tiles(const Call<T>& call, const Part<T>& part, const T* next, int64_t first, int64_t last) {
  using Tile = void (*)(const Call<T>&, const Part<T>&, const Fetch<T>&, int64_t);
  static constexpr Tile kTiles[] = {nullptr,    tile<T, 1>, tile<T, 2>, tile<T, 3>,
                                    tile<T, 4>, tile<T, 5>, tile<T, 6>};
  const int64_t num_tiles = (last - first + kRows - 1) / kRows;
  Fetch<T> fetch = {next, kPanelOutputs / num_tiles};
  for (int64_t left = num_tiles; left > 0; --left) {
    const int64_t num_rows = (last - first + left - 1) / left;
    kTiles[num_rows](call, part, fetch, first);
    first += num_rows;
    fetch.weights += part.num_in * fetch.stride;
  }
}

// Computes panels [first, last) of rows [row, row_end).
template <typename T>
void panels(const Call<T>& call, int64_t row, int64_t row_end, int64_t first, int64_t last) {
  const int64_t num_panels = (call.out + kPanelOutputs - 1) / kPanelOutputs;
  for (int64_t i = 0; i < call.in || i == 0; i += kBlockIn) {
    const int64_t num_in = std::min(kBlockIn, call.in - i);
    const T* const block = call.weights + i * num_panels * kPanelOutputs;
    for (int64_t p = first; p < last; ++p) {
      const T* const weights = block + p * num_in * kPanelOutputs;
      const int64_t num_out = std::min(kPanelOutputs, call.out - p * kPanelOutputs);
      // What is fetched after the last panel is in the cache already, and costs nothing.
      const T* const next = p + 1 < last ? weights + num_in * kPanelOutputs : weights;
      tiles<T>(call, {weights, i, num_in, p * kPanelOutputs, num_out}, next, row, row_end);
    }
  }
}

// Computes the share of one thread of all panels of all blocks of rows, in their order.
template <typename T>
void compute(const Call<T>& call, int64_t thread, int64_t num_threads) {
  const int64_t num_panels = (call.out + kPanelOutputs - 1) / kPanelOutputs;
  const int64_t total = (call.rows + kBlockRows - 1) / kBlockRows * num_panels;
  const int64_t last = total * (thread + 1) / num_threads;
  for (int64_t at = total * thread / num_threads; at < last;) {
    const int64_t row = at / num_panels * kBlockRows, panel = at % num_panels;
    const int64_t panel_end = std::min(num_panels, panel + last - at);
    panels<T>(call, row, std::min(call.rows, row + kBlockRows), panel, panel_end);
    at += panel_end - panel;
  }
}

// The same for a call on rows of T. Those of bfloat16 are widened into `scratch` first, and
// `scratch` holds their sums.
template <typename T>
void apply(Call<T> call, const T* x, float* scratch, int64_t num_threads) {
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  const int64_t stride = call.x_stride;
  if constexpr (kIsFloat) {
    call.x = x;
    call.sums = call.y;
    call.sums_stride = call.y_stride;
  } else {
    call.x = scratch;
    call.x_stride = call.in;
    call.sums = scratch + call.rows * call.in;
    call.sums_stride = call.out;
  }
  if (call.in * call.out * std::max(call.rows, kReadRows) < kFewProducts) num_threads = 1;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    if constexpr (!kIsFloat) {
#pragma omp for
      for (int64_t row = 0; row < call.rows; ++row) {
        float* const to = scratch + row * call.in;
        for (int64_t i = 0; i < call.in; ++i) to[i] = widen(x[row * stride + i]);
      }
    }
#ifdef _OPENMP
    compute(call, omp_get_thread_num(), omp_get_num_threads());
#else
    compute(call, 0, 1);
#endif
  }
}

}  // namespace

// What weights are packed by: outputs of a panel, inputs of a block, lanes of a vector.
extern "C" void loraplex_linear_layout(int64_t layout[3]) {
  layout[0] = kPanelOutputs;
  layout[1] = kBlockIn;
  layout[2] = kLanes;
}

// y [rows, out] = x [rows, in] W^T + bias; `bias` may be null. `scratch` holds rows * (in + out)
// floats if they are bfloat16; strides are those of rows.
extern "C" void loraplex_linear_float32(const float* weights, const float* bias, const float* x,
                                        float* y, int64_t in, int64_t out, int64_t rows,
                                        int64_t x_stride, int64_t y_stride, float* scratch,
                                        int64_t num_threads) {
  apply<float>({weights, bias, nullptr, nullptr, y, in, out, rows, x_stride, 0, y_stride}, x,
               scratch, num_threads);
}

extern "C" void loraplex_linear_bfloat16(const loraplex::BFloat16* weights,
                                         const loraplex::BFloat16* bias,
                                         const loraplex::BFloat16* x, loraplex::BFloat16* y,
                                         int64_t in, int64_t out, int64_t rows, int64_t x_stride,
                                         int64_t y_stride, float* scratch, int64_t num_threads) {
  apply<BFloat16>({weights, bias, nullptr, nullptr, y, in, out, rows, x_stride, 0, y_stride}, x,
                  scratch, num_threads);
}
