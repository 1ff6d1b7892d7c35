// Low-rank updates of a step on a CPU: every weight is read once, at its true rank.
//
// What is computed is told in kernels/lora.py. Few rows of an adapter are work of its weights'
// bytes, which threads share equally; many rows, of a prompt say, are tiles of products, and
// threads share the rows. Either way a sum takes its terms in the same order, so a row's bits
// depend on neither the other rows of the step nor the number of threads:
//
//   h[r]  two chains of vectors over `in`, added, then their lanes by halves
//   y[o]  one chain over the ranks

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "lora_products.h"

namespace {

using namespace loraplex;

constexpr int64_t kFewRows = 8;     // Of a segment whose weights' bytes are the work.
constexpr int64_t kBlockRows = 32;  // Of a longer one that a thread takes at a time.
constexpr int kSummedRows = 2;      // Of those, whose outputs are summed rank after rank.
constexpr int64_t kSums = 4096;     // Outputs that are summed in the first cache.
constexpr int64_t kTileOutputs = 64;      // Outputs of a tile; a row of `b` is read that far.
constexpr int64_t kAheadBytes = 2048;

// One adapter's update of one module, as its table has it.
struct Entry {
  int64_t a, b, rank, scale_bits, gain, offset;
};

// Rows [start, end) of the step; `entries` points to the table of their adapter.
struct Chunk {
  int64_t entries, start, end;
};

// Columns [offset, offset + width) of y, which a module makes.
struct Slice {
  int64_t module, offset, width;
};

// What the calls of one group of modules have in common as long as a step's segments last.
struct Plan {
  const Chunk* chunks;
  int64_t num_chunks;
  const Slice* slices;
  int64_t num_slices, in, num_threads;
};

// What one adapter does at one module to rows of one chunk.
template <typename T>
struct Work {
  const T *a, *b;
  const float *gain, *offset;
  float scale;
  int64_t rank, first_column, width;
  int64_t start, num_rows;  // Of the step.
  int64_t x, h;             // Where its inputs and its h lie, in floats.
  int64_t ranks_before, cost_before;

  int64_t cost_of_column() const { return std::max<int64_t>(rank, 1); }

  // Calls run with what finishes an output.
  template <typename Run>
  void finishing(Run run) const {
    if (gain && offset) return run(Finish<true, true>{scale, gain, offset});
    if (gain) return run(Finish<true, false>{scale, gain, offset});
    if (offset) return run(Finish<false, true>{scale, gain, offset});
    run(Finish<false, false>{scale, gain, offset});
  }
};

template <typename T>
class Update {
 public:
  Update(T* y, int64_t y_stride, const T* x, int64_t x_stride, const Plan& plan)
      : y_(y), y_stride_(y_stride), x_(x), x_stride_(x_stride), plan_(plan) {
    for (int64_t c = 0; c < plan.num_chunks; ++c) {
      const Chunk& chunk = plan.chunks[c];
      const int64_t num_rows = chunk.end - chunk.start;
      if (num_rows > kFewRows) {
        lay_out_blocks(chunk);
      } else if (num_rows > 0) {
        add_works(few_, chunk, chunk.start, num_rows);
      }
    }
    h_.reset(new float[num_h_]);
    widen_few();
  }

  void run(int64_t thread, int64_t num_threads) {
    shrink(thread, num_threads);
#ifdef _OPENMP
#pragma omp barrier
#endif
    expand(thread, num_threads);
    compute_blocks();
  }

 private:
  struct Block {
    int64_t first_work, end_work;
  };

  void add_works(std::vector<Work<T>>& works, const Chunk& chunk, int64_t start, int64_t num_rows) {
    const int64_t num_before = works.size();
    for (int64_t s = 0; s < plan_.num_slices; ++s) {
      const Slice& slice = plan_.slices[s];
      const Entry& entry = reinterpret_cast<const Entry*>(chunk.entries)[slice.module];
      if (!(entry.rank | entry.gain | entry.offset)) continue;
      Work<T> work = {};
      work.a = reinterpret_cast<const T*>(entry.a), work.b = reinterpret_cast<const T*>(entry.b);
      work.gain = reinterpret_cast<const float*>(entry.gain);
      work.offset = reinterpret_cast<const float*>(entry.offset);
      const int32_t bits = int32_t(entry.scale_bits);
      std::memcpy(&work.scale, &bits, sizeof bits);
      work.rank = entry.rank, work.first_column = slice.offset, work.width = slice.width;
      work.start = start, work.num_rows = num_rows, work.x = num_x_;
      if (&works == &few_) {
        work.h = num_h_, work.ranks_before = num_ranks_, work.cost_before = cost_;
        num_h_ += num_rows * work.rank, num_ranks_ += work.rank;
        cost_ += work.cost_of_column() * work.width;
      }
      works.push_back(work);
    }
    if (&works == &few_ && works.size() > size_t(num_before)) num_x_ += num_rows * plan_.in;
  }

  void lay_out_blocks(const Chunk& chunk) {
    const int64_t share = (chunk.end - chunk.start + plan_.num_threads - 1) / plan_.num_threads;
    const int64_t rows = std::min(kBlockRows, (share + 3) / 4 * 4);
    for (int64_t start = chunk.start; start < chunk.end; start += rows) {
      const int64_t first = many_.size();
      add_works(many_, chunk, start, std::min(rows, chunk.end - start));
      if (int64_t(many_.size()) > first) blocks_.push_back({first, int64_t(many_.size())});
    }
  }

  // Where float inputs of rows lie, and how far apart; those of bfloat16 are widened once.
  void widen_few() {
    if constexpr (!std::is_same_v<T, float>) {
      widened_.reset(new float[num_x_]);
      for (const Work<T>& work : few_) widen_rows(widened_.get() + work.x, work);
    }
  }

  void widen_rows(float* to, const Work<T>& work) const {
    for (int64_t row = 0; row < work.num_rows; ++row) {
      const T* from = x_ + (work.start + row) * x_stride_;
      for (int64_t k = 0; k < plan_.in; ++k) to[row * plan_.in + k] = widen(from[k]);
    }
  }

  // A thread's share of all h, in rows of `a`.
  void shrink(int64_t thread, int64_t num_threads) {
    const int64_t first = num_ranks_ * thread / num_threads;
    const int64_t end = num_ranks_ * (thread + 1) / num_threads;
    const int64_t row_bytes = plan_.in * sizeof(T);
    const int64_t num_ahead = (kAheadBytes + row_bytes - 1) / row_bytes;
    for (size_t w = 0; w < few_.size(); ++w) {
      const Work<T>& work = few_[w];
      const int64_t from = std::max<int64_t>(first - work.ranks_before, 0);
      const int64_t to = std::min(end - work.ranks_before, work.rank);
      for (int64_t r = from; r < to; ++r) {
        const T* next = work.a + (r + num_ahead) * plan_.in;
        if (r + num_ahead >= to && w + 1 < few_.size()) {
          next = few_[w + 1].a + (r + num_ahead - to) * plan_.in;
        }
        in_pieces<4>(work.num_rows, [&](auto rows, int64_t row) {
          const char* ahead =
              reinterpret_cast<const char*>(next + plan_.in * row / work.num_rows);
          dots<rows, 1>(h_.get() + work.h + row * work.rank + r, work.rank, work.a + r * plan_.in,
                        inputs(work, row), input_stride(), plan_.in, ahead,
                        2 * kLanes * sizeof(T) * rows / work.num_rows);
        });
      }
    }
  }

  // The same of all outputs, in elements of `b`.
  void expand(int64_t thread, int64_t num_threads) {
    for (size_t w = 0; w < few_.size(); ++w) {
      const Work<T>& work = few_[w];
      const int64_t from = column_at(work, cost_ * thread / num_threads);
      const int64_t to = column_at(work, cost_ * (thread + 1) / num_threads);
      const int64_t block = kSums / work.num_rows / kLanes * kLanes;
      for (int64_t o = from; o < to; o += block) {
        const bool is_last = o + block >= to && w + 1 < few_.size();
        expand_block(work, o, std::min(block, to - o), is_last ? few_[w + 1].b : nullptr);
      }
    }
  }

  int64_t column_at(const Work<T>& work, int64_t cost) const {
    const int64_t column = (cost - work.cost_before) / work.cost_of_column() / kLanes * kLanes;
    const bool is_beyond = cost >= work.cost_before + work.cost_of_column() * work.width;
    return is_beyond ? work.width : std::max<int64_t>(column, 0);
  }

  void expand_block(const Work<T>& work, int64_t o, int64_t count, const T* next) {
    if (work.num_rows > kSummedRows) {
      expand_tiles(work, h_.get() + work.h, o, o + count);
      return;
    }
    float sums[kSums];
    const int64_t stride = (count + kLanes - 1) / kLanes * kLanes;
    std::fill(sums, sums + work.num_rows * stride, 0.0f);
    const float* h = h_.get() + work.h;
    in_pieces<4>(work.rank, [&](auto ranks, int64_t r) {
      const T* from = work.b + r * work.width + o;
      const T* ahead = r + ranks < work.rank || !next ? from + ranks * work.width : next;
      in_pieces<kSummedRows>(work.num_rows, [&](auto rows, int64_t row) {
        accumulate<rows, ranks>(sums + row * stride, stride, from, work.width,
                                h + row * work.rank + r, work.rank, count, ahead);
      });
    });
    work.finishing([&](auto finish) {
      for (int64_t row = 0; row < work.num_rows; ++row) {
        const float* of_row = sums + row * stride - o;
        in_vectors(o, o + count, [&](int64_t i, auto how) {
          finish(output(work, row), i, load(of_row + i), how);
        });
      }
    });
  }

  T* output(const Work<T>& work, int64_t row) const {
    return y_ + (work.start + row) * y_stride_ + work.first_column;
  }

  const float* inputs(const Work<T>& work, int64_t row) const {
    if constexpr (std::is_same_v<T, float>) return x_ + (work.start + row) * x_stride_;
    return widened_.get() + work.x + row * plan_.in;
  }

  int64_t input_stride() const { return std::is_same_v<T, float> ? x_stride_ : plan_.in; }

  // Blocks of long segments, each by one thread.
  void compute_blocks() {
    if (blocks_.empty()) return;
    int64_t rank = 0;
    for (const Work<T>& work : many_) rank = std::max(rank, work.rank);
    const std::unique_ptr<float[]> h(new float[kBlockRows * rank]);
    std::unique_ptr<float[]> wide;
    if constexpr (!std::is_same_v<T, float>) wide.reset(new float[kBlockRows * plan_.in]);
#ifdef _OPENMP
#pragma omp for schedule(dynamic) nowait
#endif
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Work<T>& first = many_[blocks_[i].first_work];
      const float* x = wide.get();
      if constexpr (std::is_same_v<T, float>) {
        x = x_ + first.start * x_stride_;
      } else {
        widen_rows(wide.get(), first);
      }
      for (int64_t w = blocks_[i].first_work; w < blocks_[i].end_work; ++w) {
        shrink_tiles(many_[w], x, h.get());
        expand_tiles(many_[w], h.get(), 0, many_[w].width);
      }
    }
  }

  void shrink_tiles(const Work<T>& work, const float* x, float* h) const {
    const int64_t stride = input_stride();
    in_pieces<3>(work.num_rows, [&](auto rows, int64_t row) {
      in_pieces<2>(work.rank, [&](auto ranks, int64_t r) {
        const T* a = work.a + r * plan_.in;
        dots<rows, ranks>(h + row * work.rank + r, work.rank, a, x + row * stride, stride, plan_.in,
                          reinterpret_cast<const char*>(a + ranks * plan_.in),
                          2 * kLanes * sizeof(T));
      });
    });
  }

  void expand_tiles(const Work<T>& work, const float* h, int64_t from, int64_t to) const {
    work.finishing([&](auto finish) {
      for (int64_t o = from; o < to; o += kTileOutputs) {
        const int64_t end = std::min(o + kTileOutputs, to);
        in_pieces<4>(work.num_rows, [&](auto rows, int64_t row) {
          expand_tile<rows>(work, h + row * work.rank, row, o, end, finish);
        });
      }
    });
  }

  template <int Rows, typename Finish>
  void expand_tile(const Work<T>& work, const float* h, int64_t row, int64_t o, int64_t end,
                   Finish finish) const {
    T* y = output(work, row);
    for (int64_t i = Rows; i < 2 * Rows; ++i) {
      const T* const next = y + i * y_stride_;
      for (int64_t at = o; at < end; at += 64 / sizeof(T)) __builtin_prefetch(next + at);
    }
    const int64_t ahead_first = work.rank * row / work.num_rows;
    const int64_t ahead_end = work.rank * (row + Rows) / work.num_rows;
    for (; o + 2 * kLanes <= end; o += 2 * kLanes) {
      Floats sums[Rows][2] = {};
      const auto load_from = [&](int64_t r, int v) {
        return load(work.b + r * work.width + o + v * kLanes);
      };
      multiply(sums, h, work.rank, 0, ahead_first, load_from);
      multiply(sums, h, work.rank, ahead_first, ahead_end, [&](int64_t r, int v) {
        __builtin_prefetch(work.b + r * work.width + o + kTileOutputs);
        return load_from(r, v);
      });
      multiply(sums, h, work.rank, ahead_end, work.rank, load_from);
      for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < 2; ++v) finish(y + i * y_stride_, o + v * kLanes, sums[i][v], Whole());
      }
    }
    in_vectors(o, end, [&](int64_t o, auto how) {
      Floats sums[Rows][1] = {};
      multiply(sums, h, work.rank, 0, work.rank,
               [&](int64_t r, int) { return how.load(work.b + r * work.width + o); });
      for (int i = 0; i < Rows; ++i) finish(y + i * y_stride_, o, sums[i][0], how);
    });
  }

  T* y_;
  int64_t y_stride_;
  const T* x_;
  int64_t x_stride_;
  const Plan& plan_;
  std::vector<Work<T>> few_, many_;
  std::vector<Block> blocks_;
  std::unique_ptr<float[]> h_, widened_;
  int64_t num_h_ = 0, num_x_ = 0, num_ranks_ = 0, cost_ = 0;
};

template <typename T>
void add(void* y, int64_t y_stride, const void* x, int64_t x_stride, const Plan* plan) {
  Update<T> update(static_cast<T*>(y), y_stride, static_cast<const T*>(x), x_stride, *plan);
#ifdef _OPENMP
#pragma omp parallel num_threads(plan->num_threads) if (plan->num_threads > 1)
  update.run(omp_get_thread_num(), omp_get_num_threads());
#else
  update.run(0, 1);
#endif
}

}  // namespace

// Sizes of what kernels/lora_cpu.py and kernels/segments.py lay out.
extern "C" void loraplex_lora_struct_bytes(int64_t bytes[4]) {
  bytes[0] = sizeof(Plan);
  bytes[1] = sizeof(Chunk);
  bytes[2] = sizeof(Slice);
  bytes[3] = sizeof(Entry);
}

// `y` is [rows, out of all slices], `x` [rows, in], each with its elements of a row side by side
// and its rows `stride` elements apart. Chunks, slices and tables are those of
// kernels/segments.py, but that `b` lies as [rank, out].
extern "C" void loraplex_add_lora_float32(void* y, int64_t y_stride, const void* x,
                                          int64_t x_stride, const Plan* plan) {
  add<float>(y, y_stride, x, x_stride, plan);
}

extern "C" void loraplex_add_lora_bfloat16(void* y, int64_t y_stride, const void* x,
                                           int64_t x_stride, const Plan* plan) {
  add<BFloat16>(y, y_stride, x, x_stride, plan);
}
