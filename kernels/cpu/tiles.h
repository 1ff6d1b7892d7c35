// Small matrices that stay in the first cache: how they are laid out, and multiplied.

#ifndef LORAPLEX_TILES_H_
#define LORAPLEX_TILES_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "vectors.h"

namespace loraplex {

constexpr int64_t kPanelVectors = 4;
constexpr int64_t kColumns = kPanelVectors * kLanes;  // Columns that lie together, row after row.
constexpr int64_t kTileRows = 6;

// {a or b}[indices], where those from kLanes on count in b.
template <int... Indices>
inline Floats shuffled(Floats a, Floats b) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, Indices...);
#else
  return __builtin_shuffle(a, b, (Words){uint32_t(Indices)...});
#endif
}

// Exchanges a's lanes whose number has the bit Step with b's that have it not.
template <int Step, int... Lanes>
inline void exchange(Floats& a, Floats& b, std::integer_sequence<int, Lanes...>) {
  const Floats low = shuffled<(Lanes & Step ? Lanes - Step + int(kLanes) : Lanes)...>(a, b);
  b = shuffled<(Lanes & Step ? Lanes + int(kLanes) : Lanes + Step)...>(a, b);
  a = low;
}

// Transposes kLanes vectors in registers, halves first, as J. O. Eklundh has it ("A Fast Computer
// Method for Matrix Transposing", IEEE Transactions on Computers C-21(7), 1972).
template <int Step = kLanes / 2>
inline void transpose(Floats (&rows)[kLanes]) {
  for (int64_t i = 0; i < kLanes; ++i) {
    if (i & Step) continue;
    exchange<Step>(rows[i], rows[i + Step], std::make_integer_sequence<int, int(kLanes)>());
  }
  if constexpr (Step > 1) transpose<Step / 2>(rows);
}

// Rows of a panel, one below the other.
struct Panel {
  const float* first;

  const float* row(int64_t i) const { return first + i * kColumns; }
  Panel from(int64_t column) const { return {first + column}; }
};

// Rows that are wanted soon, one after the other. They are asked for a little at a time while
// others compute, since a processor may drop what it is asked for faster than memory comes.
template <typename T>
struct Ahead {
  static constexpr int64_t kRows = 128;
  static constexpr int64_t kAsked = 64;  // Values that are asked for at once.
  static constexpr int64_t kLine = 64;   // Bytes; where lines are longer, some are asked for twice.

  const T* rows[kRows];
  int64_t width, row = 0, column = 0;

  void ask() {
    const char* const from = reinterpret_cast<const char*>(rows[row] + column);
    for (int64_t at = 0; at < kAsked * int64_t(sizeof(T)); at += kLine) {
      __builtin_prefetch(from + at, 0, 2);
    }
    column += kAsked;
    const bool is_done = column >= width;
    column = is_done ? 0 : column;
    row += is_done & (row + 1 < kRows);
  }
};

// Rows that lie anywhere.
template <typename T>
struct Scattered {
  static constexpr int64_t kBetween = 4 * sizeof(T);  // Rows from one request to the next.

  const T* const* rows;
  Ahead<T>* wanted;
  int64_t offset;

  const T* row(int64_t i) const {
    if (i % kBetween == 0) wanted->ask();
    return rows[i] + offset;
  }
  Scattered from(int64_t column) const { return {rows, wanted, offset + column}; }
};

// A product's operands; strides count floats. Both sums[r][c] and a[r][i] lie in rows.
template <typename B>
struct Product {
  float* sums;
  int64_t sums_stride;
  const float* a;
  int64_t a_stride;
  B b;
  int64_t first, last;
};

// sums[r][c] += sum over i in [first, last) of a[r][i] * b[i][c], one after the other.
template <int64_t Rows, int64_t Vectors, typename B>
__attribute__((noinline)) void multiply(const Product<B>& of) {
  Floats sums[Rows][Vectors];
  for (int64_t r = 0; r < Rows; ++r) {
    const float* const from = of.sums + r * of.sums_stride;
    for (int64_t c = 0; c < Vectors; ++c) sums[r][c] = load(from + c * kLanes);
  }
  for (int64_t i = of.first; i < of.last; ++i) {
    Floats b[Vectors];
    for (int64_t c = 0; c < Vectors; ++c) b[c] = load(of.b.row(i) + c * kLanes);
    for (int64_t r = 0; r < Rows; ++r) {
      const float a = of.a[r * of.a_stride + i];
      for (int64_t c = 0; c < Vectors; ++c) sums[r][c] += a * b[c];
    }
  }
  for (int64_t r = 0; r < Rows; ++r) {
    float* const to = of.sums + r * of.sums_stride;
    for (int64_t c = 0; c < Vectors; ++c) store(to + c * kLanes, sums[r][c]);
  }
}

// The same for up to kTileRows rows and kPanelVectors vectors of columns, as many at a time as the
// registers hold.
template <int64_t Rows = kTileRows, typename B>
void multiply(Product<B> of, int64_t rows, int64_t vectors) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return multiply<Rows - 1>(of, rows, vectors);
  }
  if (Rows > kTileRows / 2 && kLanes == 8 && vectors > 2) {
    multiply<Rows>(of, rows, 2);
    of.sums += 2 * kLanes;
    of.b = of.b.from(2 * kLanes);
    vectors -= 2;
  }
  if (vectors == 1) return multiply<Rows, 1>(of);
  if (vectors == 2) return multiply<Rows, 2>(of);
  if constexpr (Rows <= kTileRows / 2 || kLanes > 8) {
    if (vectors == 3) return multiply<Rows, 3>(of);
    if (vectors == 4) return multiply<Rows, 4>(of);
  }
}

constexpr int64_t kPair = 2 * kLanes;

// Operands of a product with kPair rows of b that lie anywhere; a's rows have `depth` floats.
template <typename T>
struct Products {
  float* sums;
  int64_t sums_stride;
  const float* a;
  int64_t depth;
  const T* const* b;
  Ahead<T>& wanted;
};

// sums[r][c] = sum over i of a[r][i] * b[c][i], one after the other: the order, and so the bits, of
// multiply() for b transposed.
template <int64_t Rows, int64_t Vectors, typename T>
__attribute__((noinline)) void multiply_transposed(const Products<T>& of) {
  Floats sums[Rows][Vectors] = {};
  const int64_t whole = of.depth / kLanes * kLanes;
  for (int64_t d = 0; d < whole; d += kLanes) {
    for (int64_t c = 0; c < Vectors; ++c) {
      of.wanted.ask();
      Floats tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) tile[i] = load(of.b[c * kLanes + i] + d);
      transpose(tile);
      for (int64_t i = 0; i < kLanes; ++i) {
        for (int64_t r = 0; r < Rows; ++r) sums[r][c] += of.a[r * of.depth + d + i] * tile[i];
      }
    }
  }
  for (int64_t d = whole; d < of.depth; ++d) {
    for (int64_t c = 0; c < Vectors; ++c) {
      Floats b;
      for (int64_t i = 0; i < kLanes; ++i) b[i] = widen(of.b[c * kLanes + i][d]);
      for (int64_t r = 0; r < Rows; ++r) sums[r][c] += of.a[r * of.depth + d] * b;
    }
  }
  for (int64_t r = 0; r < Rows; ++r) {
    for (int64_t c = 0; c < Vectors; ++c) {
      store(of.sums + r * of.sums_stride + c * kLanes, sums[r][c]);
    }
  }
}

// The same for up to kTileRows rows.
template <int64_t Rows = kTileRows, typename T>
void multiply_transposed(const Products<T>& of, int64_t rows) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return multiply_transposed<Rows - 1>(of, rows);
  }
  if constexpr (Rows <= kTileRows / 2) {
    multiply_transposed<Rows, 2>(of);
  } else {
    multiply_transposed<Rows, 1>(of);
    multiply_transposed<Rows, 1>(Products<T>{of.sums + kLanes, of.sums_stride, of.a, of.depth,
                                             of.b + kLanes, of.wanted});
  }
}

}  // namespace loraplex

#endif  // LORAPLEX_TILES_H_
