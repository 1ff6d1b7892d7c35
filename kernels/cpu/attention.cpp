// Attention of a step on a CPU, over keys and values where they lie in their blocks.
//
// What is computed is told in kernels/attention.py. Keys are taken in blocks of kKeys positions, as
// FlashAttention takes them (https://arxiv.org/abs/2205.14135): a block is laid out for the
// registers once for all query vectors that see it, those of a tile's rows and of the heads that
// share it.
//
// Blocks begin at multiples of kKeys, whatever a step computes of a sequence, and each sum runs
// over positions in rising order: so a row's bits depend on neither the other rows of the step, nor
// how its sequence was cut into chunks, nor the number of threads. A tile's keys that a row does
// not see have weight 0 in it; others are not read. This holds for finite numbers: where a value is
// not, 0 times it is not 0, so rows of its own sequence in its tile may become NaN before it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "attention.h"
#include "exp.h"
#include "tanh.h"
#include "tiles.h"
#include "vectors.h"

namespace {

using namespace loraplex;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// e^x for x <= 0, where what is smaller than float32 holds is 0.
inline Floats weight(Floats x) { return x < -87.0f ? Floats{} : exp(x); }

template <typename T>
class Attention {
 public:
  Attention(const Step& step, const Layer& layer, const Rows<T>& rows)
      : step_(step), layer_(layer), rows_(rows) {}

  // Puts the keys and values of rows [first, last) into their slots.
  void write(int64_t first, int64_t last) const {
    for (int64_t s = 0; s < step_.num_sequences; ++s) {
      const int64_t begin = step_.first_rows[s], end = begin + step_.lengths[s];
      for (int64_t row = std::max(first, begin); row < std::min(last, end); ++row) {
        const int64_t slot = slot_of(s, step_.starts[s] + row - begin) * layer_.kv_heads;
        for (int64_t g = 0; g < layer_.kv_heads; ++g) {
          std::copy_n(at(rows_.k, layer_.k, row, g), layer_.key_dim,
                      keys() + (slot + g) * layer_.key_dim);
          std::copy_n(at(rows_.v, layer_.v, row, g), layer_.value_dim,
                      values() + (slot + g) * layer_.value_dim);
        }
      }
    }
  }

  // Cuts the step into pieces of work for so many threads.
  std::vector<Item> items(int64_t num_threads) const {
    std::vector<Item> items;
    for (int64_t s = 0; s < step_.num_sequences; ++s) {
      const int64_t length = step_.lengths[s], rows = std::min(length, layer_.tile_rows());
      const bool are_few = step_.num_sequences < 4 * num_threads && num_threads > 1;
      const int64_t heads =
          are_few ? 1 : std::max(int64_t(1), kQueries / (rows * layer_.group()));
      for (int64_t head = 0; head < layer_.kv_heads; head += heads) {
        for (int64_t row = 0; row < length; row += rows) {
          items.push_back({s, row, std::min(rows, length - row), head,
                           std::min(heads, layer_.kv_heads - head)});
        }
      }
    }
    return items;
  }

  // Attends the rows of a piece; `next` is what is likely to come after it, if anything does.
  void attend(const Item& item, const Item* next, const Scratch& scratch) const {
    const int64_t num_queries = item.heads * item.rows * layer_.group();
    load_queries(item, scratch);
    std::fill_n(scratch.sums, num_queries * padded(layer_.value_dim), 0.0f);
    std::fill_n(scratch.largest, num_queries, -kInfinity);
    std::fill_n(scratch.totals, num_queries, 0.0f);
    const int64_t last = start_of(item) + item.rows;
    int64_t base = first_base(item);
    Positions here = positions(item, base), ahead;
    for (; base < last; base += kKeys, here = ahead) {
      if (base + kKeys < last) {
        ahead = positions(item, base + kKeys);
      } else {
        ahead = next == nullptr ? Positions{item.head, 0, 0, 0, {}}
                                : positions(*next, first_base(*next));
      }
      Ahead<T> wanted = wanted_of(ahead, item.heads);
      for (int64_t g = 0; g < item.heads; ++g) attend_block(item, g, here, wanted, scratch);
    }
    store_result(item, scratch);
  }

 private:
  T* keys() const { return static_cast<T*>(layer_.keys); }
  T* values() const { return static_cast<T*>(layer_.values); }

  static const T* at(const T* data, const Vectors& vectors, int64_t row, int64_t head) {
    return data + row * vectors.row_stride + head * vectors.head_stride;
  }

  int64_t slot_of(int64_t sequence, int64_t position) const {
    const int32_t* table = step_.tables + sequence * step_.table_width;
    return table[position / layer_.block_size] * layer_.block_size + position % layer_.block_size;
  }

  int64_t start_of(const Item& item) const { return step_.starts[item.sequence] + item.row; }

  int64_t first_base(const Item& item) const {
    return std::max(int64_t(0), start_of(item) - layer_.window + 1) / kKeys * kKeys;
  }

  // What the rows of a piece see of the block at `base`.
  Positions positions(const Item& item, int64_t base) const {
    Positions found;
    found.head = item.head;
    found.base = base;
    found.from = std::max(start_of(item) - layer_.window + 1 - base, int64_t(0));
    found.to = std::min(start_of(item) + item.rows - base, kKeys);
    int64_t i = found.from;
    while (i < found.to) {
      int64_t slot = slot_of(item.sequence, base + i);
      const int64_t left = layer_.block_size - (base + i) % layer_.block_size;
      for (const int64_t end = std::min(found.to, i + left); i < end; ++i) found.slots[i] = slot++;
    }
    std::fill(found.slots, found.slots + found.from, found.slots[found.from]);
    std::fill(found.slots + found.to, found.slots + kKeys, found.slots[found.from]);
    return found;
  }

  void load_queries(const Item& item, const Scratch& scratch) const {
    float* to = scratch.queries;
    const int64_t first_row = step_.first_rows[item.sequence] + item.row;
    for (int64_t g = item.head; g < item.head + item.heads; ++g) {
      for (int64_t row = first_row; row < first_row + item.rows; ++row) {
        for (int64_t h = g * layer_.group(); h < (g + 1) * layer_.group(); ++h) {
          const T* from = at(rows_.q, layer_.q, row, h);
          for (int64_t d = 0; d < layer_.key_dim; ++d) *to++ = widen(from[d]) * layer_.scaling;
        }
      }
    }
  }

  // Adds the keys and values of the piece's KV head `g` to what its query vectors have seen.
  void attend_block(const Item& item, int64_t g, const Positions& here, Ahead<T>& wanted,
                    const Scratch& scratch) const {
    const int64_t n = item.rows * layer_.group(), query = g * n;
    const Block block{here, item.head + g, start_of(item) - here.base, n, query};
    // Few query vectors wait for memory more than they compute: what comes next is asked for early.
    if (n <= kTileRows && layer_.value_dim % kLanes == 0) {
      score_in_place(block, wanted, scratch);
      for (int64_t i = 0; i < n; ++i) soften(block, i, &wanted, scratch);
      const T* rows[kKeys];
      for (int64_t i = here.from; i < here.to; ++i) rows[i] = value(here, block.head, i);
      gather(block, Scattered<T>{rows, &wanted, 0}, 1, scratch);
    } else {
      lay_out_keys(block, scratch);
      score(block, scratch);
      for (int64_t i = 0; i < n; ++i) soften(block, i, nullptr, scratch);
      lay_out_values(block, scratch);
      gather(block, Panel{scratch.values}, kKeys, scratch);
    }
  }

  // Keys and then values of so many KV heads, in the order of memory.
  Ahead<T> wanted_of(const Positions& at, int64_t heads) const {
    static_assert(Ahead<T>::kRows == 2 * kKeys);
    Ahead<T> wanted;
    for (int64_t i = 0; i < kKeys; ++i) {
      wanted.rows[i] = key(at, at.head, i);
      wanted.rows[kKeys + i] = value(at, at.head, i);
    }
    wanted.width = heads * std::max(layer_.key_dim, layer_.value_dim);
    return wanted;
  }

  // Keys of a block before which all lie that query vector `i` sees.
  int64_t end_for(const Block& block, int64_t i) const {
    return std::min(block.at.to, block.start + i / layer_.group() + 1);
  }

  const T* key(const Positions& at, int64_t head, int64_t i) const {
    return keys() + (at.slots[i] * layer_.kv_heads + head) * layer_.key_dim;
  }

  const T* value(const Positions& at, int64_t head, int64_t i) const {
    return values() + (at.slots[i] * layer_.kv_heads + head) * layer_.value_dim;
  }

  void score(const Block& block, const Scratch& scratch) const {
    std::memset(scratch.scores, 0, block.count * kKeys * sizeof(float));
    const int64_t first = block.at.from / kColumns * kColumns;
    for (int64_t panel = first; panel < block.at.to; panel += kColumns) {
      for (int64_t i = 0; i < block.count; i += kTileRows) {
        const int64_t rows = std::min(kTileRows, block.count - i);
        const int64_t columns = std::min(end_for(block, i + rows - 1) - panel, kColumns);
        if (columns <= 0) continue;
        float* const scores = scratch.scores + i * kKeys + panel;
        const float* const queries = scratch.queries + (block.query + i) * layer_.key_dim;
        const Panel keys{scratch.keys + panel * layer_.key_dim};
        multiply(Product<Panel>{scores, kKeys, queries, layer_.key_dim, keys, 0, layer_.key_dim},
                 rows, padded(columns) / kLanes);
      }
    }
  }

  // The same for few query vectors, of keys where they lie.
  void score_in_place(const Block& block, Ahead<T>& wanted, const Scratch& scratch) const {
    const T* rows[kKeys];
    for (int64_t i = 0; i < kKeys; ++i) {
      const bool is_there = i >= block.at.from && i < block.at.to;
      rows[i] = is_there ? key(block.at, block.head, i)
                         : reinterpret_cast<const T*>(scratch.nothing);
    }
    const float* const queries = scratch.queries + block.query * layer_.key_dim;
    for (int64_t i = block.at.from / kPair * kPair; i < block.at.to; i += kPair) {
      multiply_transposed(
          Products<T>{scratch.scores + i, kKeys, queries, layer_.key_dim, rows + i, wanted},
          block.count);
    }
  }

  // Adds a block's values, weighted; a column's lie `height` times its number from the first.
  template <typename B>
  void gather(const Block& block, B values, int64_t height, const Scratch& scratch) const {
    const int64_t value_dim = padded(layer_.value_dim);
    for (int64_t panel = 0; panel < value_dim; panel += kColumns) {
      for (int64_t i = 0; i < block.count; i += kTileRows) {
        const int64_t rows = std::min(kTileRows, block.count - i);
        multiply(Product<B>{scratch.sums + (block.query + i) * value_dim + panel, value_dim,
                            scratch.scores + i * kKeys, kKeys, values.from(panel * height),
                            block.at.from, end_for(block, i + rows - 1)},
                 rows, std::min(kColumns, value_dim - panel) / kLanes);
      }
    }
  }

  void lay_out_keys(const Block& block, const Scratch& scratch) const {
    const Positions& at = block.at;
    const int64_t whole = layer_.key_dim / kLanes * kLanes;
    for (int64_t first = at.from / kLanes * kLanes; first < at.to; first += kLanes) {
      const T* rows[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        const bool is_there = first + i >= at.from && first + i < at.to;
        rows[i] = is_there ? key(at, block.head, first + i)
                           : reinterpret_cast<const T*>(scratch.nothing);
      }
      const int64_t column = first % kColumns;
      float* const to = scratch.keys + (first - column) * layer_.key_dim + column;
      for (int64_t d = 0; d < whole; d += kLanes) {
        Floats tile[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) tile[i] = load(rows[i] + d);
        transpose(tile);
        for (int64_t i = 0; i < kLanes; ++i) store(to + (d + i) * kColumns, tile[i]);
      }
      for (int64_t d = whole; d < layer_.key_dim; ++d) {
        for (int64_t i = 0; i < kLanes; ++i) to[d * kColumns + i] = widen(rows[i][d]);
      }
    }
  }

  void lay_out_values(const Block& block, const Scratch& scratch) const {
    for (int64_t panel = 0; panel < layer_.value_dim; panel += kColumns) {
      const int64_t columns = std::min(kColumns, layer_.value_dim - panel);
      const int64_t whole = columns / kLanes * kLanes;
      for (int64_t key = block.at.from; key < block.at.to; ++key) {
        const T* from = value(block.at, block.head, key) + panel;
        float* const to = scratch.values + panel * kKeys + key * kColumns;
        for (int64_t d = 0; d < whole; d += kLanes) store(to + d, load(from + d));
        for (int64_t d = whole; d < columns; ++d) to[d] = widen(from[d]);
      }
    }
  }

  // Turns one query vector's scores into weights; those of keys that it does not see are 0.
  void soften(const Block& block, int64_t i, Ahead<T>* wanted, const Scratch& scratch) const {
    float* const scores = scratch.scores + i * kKeys;
    const int64_t query = block.query + i, to = end_for(block, i);
    const int64_t from =
        std::max(block.at.from, block.start + i / layer_.group() + 1 - layer_.window);
    const int64_t first = from / kLanes * kLanes, last = padded(to);
    if (from >= to) {
      std::fill(scores + block.at.from, scores + block.at.to, 0.0f);
      return;
    }
    if (layer_.softcap != 0) cap(scores, first, last);
    std::fill(scores + first, scores + from, -kInfinity);
    std::fill(scores + to, scores + last, -kInfinity);
    Floats highest = load(scores + first);
    for (int64_t j = first + kLanes; j < last; j += kLanes) {
      const Floats other = load(scores + j);
      highest = other > highest ? other : highest;
    }
    const float before = scratch.largest[query], now = std::max(before, max_of(highest));
    Floats total = {};
    for (int64_t j = first; j < last; j += kLanes) {
      if (wanted != nullptr) wanted->ask();
      const Floats weights = weight(load(scores + j) - now);
      store(scores + j, weights);
      total += weights;
    }
    if (block.at.from < first) std::fill(scores + block.at.from, scores + first, 0.0f);
    if (last < block.at.to) std::fill(scores + last, scores + block.at.to, 0.0f);
    if (now != before) {
      scratch.largest[query] = now;
      rescale(query, weight(Floats{} + (before - now))[0], scratch);
    }
    scratch.totals[query] += sum_of(total);
  }

  void rescale(int64_t query, float factor, const Scratch& scratch) const {
    const int64_t value_dim = padded(layer_.value_dim);
    float* const sums = scratch.sums + query * value_dim;
    for (int64_t d = 0; d < value_dim; d += kLanes) store(sums + d, load(sums + d) * factor);
    scratch.totals[query] *= factor;
  }

  void cap(float* scores, int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; i += kLanes) {
      store(scores + i, tanh(load(scores + i) / layer_.softcap) * layer_.softcap);
    }
  }

  void store_result(const Item& item, const Scratch& scratch) const {
    const int64_t group = layer_.group(), value_dim = padded(layer_.value_dim);
    const int64_t first_row = step_.first_rows[item.sequence] + item.row;
    const float* from = scratch.sums;
    for (int64_t i = 0; i < item.heads * item.rows * group; ++i, from += value_dim) {
      const int64_t g = item.head + i / (item.rows * group);
      const int64_t row = first_row + i / group % item.rows;
      T* to = rows_.out + (row * layer_.heads + g * group + i % group) * layer_.value_dim;
      for (int64_t d = 0; d < layer_.value_dim; ++d) narrow(from[d] / scratch.totals[i], to[d]);
    }
  }

  const Step& step_;
  const Layer& layer_;
  const Rows<T> rows_;
};

template <typename T>
void attend(const Step& step, const Layer& layer, const Rows<T>& rows, int64_t num_threads) {
  const Attention<T> attention(step, layer, rows);
  const std::vector<Item> items = attention.items(num_threads);
  const int64_t num_items = items.size();
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
#ifdef _OPENMP
    const int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
#else
    const int64_t thread = 0, count = 1;
#endif
    attention.write(step.num_rows * thread / count, step.num_rows * (thread + 1) / count);
    const Scratch own(layer);
#pragma omp barrier
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < num_items; ++i) {
      attention.attend(items[i], i + 1 < num_items ? &items[i + 1] : nullptr, own);
    }
  }
}

}  // namespace

// Sizes of what kernels/attention_cpu.py lays out.
extern "C" void loraplex_attention_struct_bytes(int64_t bytes[2]) {
  bytes[0] = sizeof(Step);
  bytes[1] = sizeof(Layer);
}

// `q` is [rows, heads, key_dim], `k` [rows, kv_heads, key_dim], `v` [rows, kv_heads, value_dim],
// with the layer's strides; `out` is [rows, heads, value_dim] and contiguous.
extern "C" void loraplex_attend_float32(const Step* step, const Layer* layer, const float* q,
                                        const float* k, const float* v, float* out,
                                        int64_t num_threads) {
  attend<float>(*step, *layer, {q, k, v, out}, num_threads);
}

extern "C" void loraplex_attend_bfloat16(const Step* step, const Layer* layer, const BFloat16* q,
                                         const BFloat16* k, const BFloat16* v, BFloat16* out,
                                         int64_t num_threads) {
  attend<BFloat16>(*step, *layer, {q, k, v, out}, num_threads);
}
