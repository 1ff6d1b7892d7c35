// What attention is told of a step and a layer, and the memory that it works in.

#ifndef LORAPLEX_ATTENTION_H_
#define LORAPLEX_ATTENTION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "tiles.h"
#include "vectors.h"

namespace loraplex {

constexpr int64_t kKeys = 64;     // Positions of a block; a multiple of kColumns.
constexpr int64_t kQueries = 48;  // Query vectors that a tile aims at.

inline int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// Sequences of a step, as kernels/attention_cpu.py lays them out.
struct Step {
  int64_t num_sequences, num_rows, table_width;
  const int64_t* starts;
  const int64_t* lengths;
  const int64_t* first_rows;
  const int32_t* tables;
};

// Vectors of rows and heads; strides count elements.
struct Vectors {
  int64_t row_stride, head_stride;
};

// One layer, as kernels/attention_cpu.py lays it out.
struct Layer {
  void* keys;
  void* values;
  int64_t heads, kv_heads, key_dim, value_dim, block_size;
  int64_t window;  // Of all positions where there is none.
  Vectors q, k, v;
  float scaling;
  float softcap;  // 0 where there is none.

  int64_t group() const { return heads / kv_heads; }
  int64_t tile_rows() const { return std::max(int64_t(1), kQueries / group()); }
  int64_t max_queries() const { return std::max(kQueries, group()); }
};

// Rows [row, row + rows) of a sequence's chunk and KV heads [head, head + heads).
struct Item {
  int64_t sequence, row, rows, head, heads;
};

// What a layer's rows hold, and where its result goes.
template <typename T>
struct Rows {
  const T *q, *k, *v;
  T* out;
};

// Positions base + [from, to) of a sequence, and where they lie.
struct Positions {
  int64_t head, base, from, to;  // The head is the first of the piece's KV heads.
  int64_t slots[kKeys];
};

// Keys of one KV head, and the `count` query vectors from `query` on that see some of them.
struct Block {
  const Positions& at;
  int64_t head;
  int64_t start;  // Position of the first row, counted from the block's own.
  int64_t count, query;
};

// Scratch of one thread, in one call.
class Scratch {
 public:
  float* queries;  // [queries][key_dim], scaled
  float* scores;   // [queries][kKeys]
  float* sums;     // [queries][padded value_dim]
  float* largest;  // [queries]: of the scores so far
  float* totals;   // [queries]: of the weights so far
  float* keys;     // [kKeys / kColumns][key_dim][kColumns]
  float* values;   // [value_dim / kColumns][kKeys][kColumns]
  float* nothing;  // [key_dim] zeros, read in place of a key that is not there

  explicit Scratch(const Layer& layer) {
    const int64_t n = layer.max_queries(), value_dim = padded(layer.value_dim);
    const std::pair<float**, int64_t> parts[] = {
        {&queries, n * layer.key_dim},
        {&scores, n * kKeys},
        {&sums, n * value_dim},
        {&largest, n},
        {&totals, n},
        {&keys, kKeys * layer.key_dim},
        {&values, kKeys * (value_dim + kColumns)},
        {&nothing, layer.key_dim},
    };
    int64_t num_lines = 0;
    for (const auto& part : parts) num_lines += Line::holding(part.second);
    memory_.reset(new Line[num_lines]);
    Line* next = memory_.get();
    for (const auto& part : parts) {
      *part.first = next->floats;
      next += Line::holding(part.second);
    }
    std::fill_n(nothing, layer.key_dim, 0.0f);
  }

 private:
  struct alignas(64) Line {
    float floats[16];

    static int64_t holding(int64_t count) { return (count + 15) / 16; }
  };

  std::unique_ptr<Line[]> memory_;
};

}  // namespace loraplex

#endif  // LORAPLEX_ATTENTION_H_
