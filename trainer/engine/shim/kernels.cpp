// One translation unit, compiled three times: -DESPALIER_ISA=base, v3 (AVX2, FMA) and v4 (AVX-512).
// Includes nothing with inline functions, so that no code made for a newer CPU can leak into the others.
#include "kernels.h"

#define ESPALIER_JOIN2(a, b) a##b
#define ESPALIER_JOIN(a, b) ESPALIER_JOIN2(a, b)

namespace {

// Vectors are as wide as the registers, and tiles as many rows as keep their sums, two vectors each, in registers: what does
// not fit goes through the stack at every step, many times slower.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kMostRows = 12;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kMostRows = 6;
#else
constexpr int kLanes = 4, kMostRows = 6;
#endif
typedef float vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(float* p, vec x) { *reinterpret_cast<vec*>(p) = x; }
inline vec splat(float x) { return x - vec{}; }
inline vec vmax(vec a, vec b) { return a > b ? a : b; }
inline float hmax(vec a) {
  float m = a[0];
  for (int i = 1; i < kLanes; i++) m = a[i] > m ? a[i] : m;
  return m;
}
inline float hsum(vec a) {
  float s[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++) s[i] = a[i];
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < half; i++) s[i] += s[i + half];
  return s[0];
}

// exp for x <= 88, relative error below 2e-7; below -87 the result is 0. Range reduction by ln 2 in two parts, then the
// Taylor polynomial of degree 7 on [-ln2/2, ln2/2].
inline vec vexp(vec x) {
  const vec low = splat(-87.0f), high = splat(88.0f);
  ivec under = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  vec shifted = x * 1.44269504088896341f + magic;
  vec n = shifted - magic;
  vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vec p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  ivec exponent = (__builtin_convertvector(n, ivec) + 127) << 23;
  vec scaled = p * (vec)exponent;
  return under ? vec{} : scaled;
}
inline float sexp(float x) { return vexp(splat(x))[0]; }

void rms_norm(float* x, const float* add, const float* w, float* out, int64_t n, float eps) {
  vec squares{};
  float rest = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    vec a = load(x + i);
    if (add) {
      a += load(add + i);
      store(x + i, a);
    }
    squares += a * a;
  }
  for (; i < n; i++) {
    if (add) x[i] += add[i];
    rest += x[i] * x[i];
  }
  float scale = 1.0f / __builtin_sqrtf((hsum(squares) + rest) / static_cast<float>(n) + eps);
  for (i = 0; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * scale * load(w + i));
  for (; i < n; i++) out[i] = x[i] * scale * w[i];
}

void silu_mul(const float* gate, const float* up, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    vec g = load(gate + i);
    store(out + i, g / (vexp(-g) + 1.0f) * load(up + i));
  }
  for (; i < n; i++) out[i] = gate[i] / (sexp(-gate[i]) + 1.0f) * up[i];
}

void rotate(float* x, const float* cos, const float* sin, int64_t dim) {
  int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// The most of `of` rows, in equal parts, whose sums the registers hold.
constexpr int rows_at_once(int of) {
  int rows = of < kMostRows ? of : kMostRows;
  while (of % rows != 0) rows--;
  return rows;
}

// C vectors of each of R rows: row r of `out` becomes, or with `Add` grows by, the sum over i < n of
// x[r * X_ROW + i * X_STEP] * w[i * stride ...].
template <int R, int C, int X_ROW, int X_STEP, bool Add>
inline void multiply(const float* w, int64_t stride, int64_t n, const float* x, float* out, int64_t out_stride) {
  vec sum[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) sum[r][c] = Add ? load(out + r * out_stride + c * kLanes) : vec{};
  for (int64_t i = 0; i < n; i++) {
    vec column[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) column[c] = load(w + i * stride + c * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) sum[r][c] += column[c] * x[r * X_ROW + i * X_STEP];
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) store(out + r * out_stride + c * kLanes, sum[r][c]);
}

// Online softmax over blocks. All Q queries walk the same blocks; each has its own last visible position.
template <int Q>
void attend_tile(const float* const* q, const int64_t* last, const float* const* keys, const float* const* values,
                 int64_t dim, float* const* out) {
  // A single row has few sums to add to at the same time: it takes more columns.
  constexpr int kRows = rows_at_once(Q), kColumns = (kRows == 1 && kLanes < 16 ? 4 : 2) * kLanes;
  float most[Q], total[Q];
  alignas(64) float acc[Q][kMaxDim];
  alignas(64) float p[Q][kBlock];
  alignas(64) float qt[kMaxDim][Q];
  int64_t end = 0;
  for (int j = 0; j < Q; j++) {
    most[j] = -3.0e38f;
    total[j] = 0;
    if (last[j] + 1 > end) end = last[j] + 1;
    for (int64_t d = 0; d < dim; d++) acc[j][d] = 0, qt[d][j] = q[j][d];
  }
  ivec count;
  for (int i = 0; i < kLanes; i++) count[i] = i;
  for (int64_t at = 0; at < end; at += kBlock) {
    const float* k = keys[at / kBlock];
    const float* v = values[at / kBlock];
    for (int j = 0; j < Q; j += kRows)
      for (int64_t t = 0; t < kBlock; t += kColumns)
        multiply<kRows, kColumns / kLanes, 1, Q, false>(k + t, kBlock, dim, &qt[0][j], &p[j][t], kBlock);
    for (int j = 0; j < Q; j++) {
      int64_t seen = last[j] + 1 - at;
      if (seen <= 0) {
        for (int t = 0; t < kBlock; t++) p[j][t] = 0;
        continue;
      }
      vec high = splat(-3.0e38f);
      for (int t = 0; t < kBlock; t += kLanes) {
        vec s = load(&p[j][t]);
        if (seen < kBlock) {
          // Unwritten slots hold anything, NaN included: they are replaced, never multiplied.
          s = count + t < static_cast<int32_t>(seen) - ivec{} ? s : splat(-3.0e38f);
          store(&p[j][t], s);
        }
        high = vmax(high, s);
      }
      float m = hmax(high);
      if (m > most[j]) {
        float shrink = sexp(most[j] - m);
        total[j] *= shrink;
        for (int64_t d = 0; d < dim; d += kLanes) store(&acc[j][d], load(&acc[j][d]) * shrink);
        most[j] = m;
      }
      vec sum{};
      for (int t = 0; t < kBlock; t += kLanes) {
        vec e = vexp(load(&p[j][t]) - most[j]);
        store(&p[j][t], e);
        sum += e;
      }
      total[j] += hsum(sum);
    }
    int64_t filled = end - at < kBlock ? end - at : kBlock;
    for (int j = 0; j < Q; j += kRows) {
      int64_t d = 0;
      for (; d + kColumns <= dim; d += kColumns)
        multiply<kRows, kColumns / kLanes, kBlock, 1, true>(v + d, dim, filled, p[j], &acc[j][d], kMaxDim);
      for (; d < dim; d += kLanes) multiply<kRows, 1, kBlock, 1, true>(v + d, dim, filled, p[j], &acc[j][d], kMaxDim);
    }
  }
  for (int j = 0; j < Q; j++) {
    float inverse = 1.0f / total[j];
    for (int64_t d = 0; d < dim; d += kLanes) store(out[j] + d, load(&acc[j][d]) * inverse);
  }
}

void attend(const float* const* q, const int64_t* last, int64_t n, const float* const* keys,
            const float* const* values, int64_t dim, float* const* out) {
  const float* qs[kMaxQueries];
  int64_t ls[kMaxQueries];
  float* os[kMaxQueries];
  // Short tiles are filled up with copies of the last query: the same numbers are written twice.
  for (int64_t j = 0; j < kMaxQueries; j++) {
    int64_t from = j < n ? j : n - 1;
    qs[j] = q[from], ls[j] = last[from], os[j] = out[from];
  }
  if (n <= 1) attend_tile<1>(qs, ls, keys, values, dim, os);
  else if (n <= 3) attend_tile<3>(qs, ls, keys, values, dim, os);
  else if (n <= 4) attend_tile<4>(qs, ls, keys, values, dim, os);
  else if (n <= 8) attend_tile<8>(qs, ls, keys, values, dim, os);
  else attend_tile<12>(qs, ls, keys, values, dim, os);
}

void row_stats(const float* x, int64_t n, float scale, float* probs, float* largest, int64_t* index, float* lse) {
  vec best = splat(-3.4e38f);
  float m = -3.4e38f;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = vmax(best, load(x + i));
  m = hmax(best);
  for (; i < n; i++) m = x[i] > m ? x[i] : m;
  int64_t first = 0;
  while (first < n - 1 && x[first] != m) first++;
  float top = m * scale;
  // Partial sums of 4,096 keep the error of the total small.
  double sum = 0;
  for (i = 0; i + kLanes <= n;) {
    vec part{};
    for (int64_t stop = i + 4096 < n - kLanes + 1 ? i + 4096 : n - kLanes + 1; i < stop; i += kLanes) {
      vec e = vexp(load(x + i) * scale - top);
      part += e;
      if (probs) store(probs + i, e);
    }
    sum += hsum(part);
  }
  for (; i < n; i++) {
    float e = sexp(x[i] * scale - top);
    sum += e;
    if (probs) probs[i] = e;
  }
  *largest = top;
  *index = first;
  *lse = top + static_cast<float>(__builtin_log(sum));
}

inline vec widen(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline vec widen(const uint16_t* p) {
#ifdef __F16C__
  vec out;
  asm("vcvtph2ps %1, %0" : "=v"(out) : "m"(*reinterpret_cast<const hvec*>(p)));
  return out;
#else
  // The bits of a half, moved to a float's places, are that half times 2^-112.
  ivec bits = __builtin_convertvector(*reinterpret_cast<const hvec*>(p), ivec);
  vec magnitude = (vec)((bits & 0x7fff) << 13) * 0x1p112f;
  return (vec)((ivec)magnitude | ((bits & 0x8000) << 16));
#endif
}
void narrow(const float* x, float scale, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    vec scaled = *reinterpret_cast<const vec*>(x + i) * scale;
    hvec half;
#ifdef __F16C__
    asm("vcvtps2ph $0, %1, %0" : "=v"(half) : "v"(scaled));
#else
    // `widen` backwards; what is cut off rounds to the nearest, and to the even of two. Below 2^-14 the product has
    // already been rounded once.
    ivec sign = ((ivec)scaled >> 16) & 0x8000;
    ivec bits = (ivec)((vec)((ivec)scaled & 0x7fffffff) * 0x1p-112f);
    bits = (bits + 0xfff + ((bits >> 13) & 1)) >> 13;
    half = __builtin_convertvector(bits | sign, hvec);
#endif
    *reinterpret_cast<hvec*>(out + i) = half;
  }
}

template <int R, class W>
inline void shrink_chunk(const W* a, const float* x, int64_t x_stride, vec (&acc)[kShrinkRows][R]) {
#pragma GCC unroll 4
  for (int v = 0; v < kShrinkChunk; v += kLanes) {
    vec xs[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) xs[r] = widen(x + r * x_stride + v);
#pragma GCC unroll 4
    for (int j = 0; j < kShrinkRows; j++) {
      vec w = widen(a + j * kShrinkChunk + v);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) acc[j][r] += w * xs[r];
    }
  }
}

template <int R, class W>
inline void shrink_tile(const W* a, int64_t in, const float* scales, const float* x, int64_t x_stride, float* t,
                        int64_t t_stride) {
  vec acc[kShrinkRows][R];
#pragma GCC unroll 4
  for (int j = 0; j < kShrinkRows; j++)
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) acc[j][r] = vec{};
  int64_t i = 0;
  for (; i + kShrinkChunk <= in; i += kShrinkChunk) shrink_chunk<R>(a + i * kShrinkRows, x + i, x_stride, acc);
  if (i < in) {
    // Behind the row lies another: what is left of it is filled up with zeros.
    float rest[R * kShrinkChunk] = {};
    for (int r = 0; r < R; r++)
      for (int64_t j = i; j < in; j++) rest[r * kShrinkChunk + j - i] = x[r * x_stride + j];
    shrink_chunk<R>(a + i * kShrinkRows, rest, kShrinkChunk, acc);
  }
#pragma GCC unroll 4
  for (int j = 0; j < kShrinkRows; j++)
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) t[r * t_stride + j] = hsum(acc[j][r]) * scales[j];
}

template <class W>
void shrink(const W* a, int64_t in, const float* scales, const float* x, int64_t x_stride, int64_t rows, float* t,
            int64_t t_stride) {
  // As many rows at once as there are registers for their sums.
  constexpr int kRows = kLanes / 4;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    shrink_tile<kRows>(a, in, scales, x + r * x_stride, x_stride, t + r * t_stride, t_stride);
  for (; r < rows; r++) shrink_tile<1>(a, in, scales, x + r * x_stride, x_stride, t + r * t_stride, t_stride);
}

void lora_shrink(const void* a, bool half, int64_t in, const float* scales, const float* x, int64_t x_stride,
                 int64_t rows, float* t, int64_t t_stride) {
  if (half) shrink(static_cast<const uint16_t*>(a), in, scales, x, x_stride, rows, t, t_stride);
  else shrink(static_cast<const float*>(a), in, scales, x, x_stride, rows, t, t_stride);
}

template <int R, class W>
inline void expand_tile(const W* b, int64_t rank, const float* t, int64_t t_stride, float* y, int64_t y_stride) {
  constexpr int kVectors = kExpandTile / kLanes;
  vec acc[R][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v++) acc[r][v] = widen(y + r * y_stride + v * kLanes);
  for (int64_t k = 0; k < rank; k++) {
    vec w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v++) w[v] = widen(b + k * kExpandTile + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; v++) acc[r][v] += w[v] * t[r * t_stride + k];
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v++) *reinterpret_cast<vec*>(y + r * y_stride + v * kLanes) = acc[r][v];
}

template <class W>
void expand(const W* b, int64_t rank, int64_t outs, const float* t, int64_t t_stride, int64_t rows, float* y,
            int64_t y_stride) {
  constexpr int kRows = kLanes / 4;
  int64_t r = 0;
  if (outs == kExpandTile) {
    for (; r + kRows <= rows; r += kRows)
      expand_tile<kRows>(b, rank, t + r * t_stride, t_stride, y + r * y_stride, y_stride);
    for (; r < rows; r++) expand_tile<1>(b, rank, t + r * t_stride, t_stride, y + r * y_stride, y_stride);
    return;
  }
  // The last tile of a row: what lies behind it belongs to others.
  for (; r < rows; r++) {
    float own[kExpandTile] = {};
    for (int64_t j = 0; j < outs; j++) own[j] = y[r * y_stride + j];
    expand_tile<1>(b, rank, t + r * t_stride, t_stride, own, kExpandTile);
    for (int64_t j = 0; j < outs; j++) y[r * y_stride + j] = own[j];
  }
}

void lora_expand(const void* b, bool half, int64_t rank, int64_t outs, const float* t, int64_t t_stride, int64_t rows,
                 float* y, int64_t y_stride) {
  if (half) expand(static_cast<const uint16_t*>(b), rank, outs, t, t_stride, rows, y, y_stride);
  else expand(static_cast<const float*>(b), rank, outs, t, t_stride, rows, y, y_stride);
}

}  // namespace

extern const EspalierKernels ESPALIER_JOIN(espalier_kernels_, ESPALIER_ISA) = {
    rms_norm, silu_mul, rotate, attend, row_stats, narrow, lora_shrink, lora_expand};
