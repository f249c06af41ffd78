// One translation unit, compiled three times: -DESPALIER_ISA=base, v3 (AVX2, FMA) and v4 (AVX-512).
// Includes nothing with inline functions, so that no code made for a newer CPU can leak into the others.
#include "kernels.h"

#define ESPALIER_JOIN2(a, b) a##b
#define ESPALIER_JOIN(a, b) ESPALIER_JOIN2(a, b)

namespace {

typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i16v __attribute__((vector_size(64), aligned(4), may_alias));

inline v16 load(const float* p) { return *reinterpret_cast<const v16*>(p); }
inline void store(float* p, v16 x) { *reinterpret_cast<v16*>(p) = x; }
inline v16 splat(float x) { return x - v16{}; }
inline v16 vmax(v16 a, v16 b) { return a > b ? a : b; }
inline float hmax(v16 a) {
  float m = a[0];
  for (int i = 1; i < 16; i++) m = a[i] > m ? a[i] : m;
  return m;
}
inline float hsum(v16 a) {
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = a[i] + a[i + 8];
  for (int i = 0; i < 4; i++) s[i] += s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// exp for x <= 88, relative error below 2e-7; below -87 the result is 0. Range reduction by ln 2 in two parts, then the
// Taylor polynomial of degree 7 on [-ln2/2, ln2/2].
inline v16 vexp(v16 x) {
  const v16 low = splat(-87.0f), high = splat(88.0f);
  i16v under = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const v16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  v16 shifted = x * 1.44269504088896341f + magic;
  v16 n = shifted - magic;
  v16 r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  v16 p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  i16v exponent = (__builtin_convertvector(n, i16v) + 127) << 23;
  v16 scaled = p * (v16)exponent;
  return under ? v16{} : scaled;
}
inline float sexp(float x) { return vexp(splat(x))[0]; }

void rms_norm(float* x, const float* add, const float* w, float* out, int64_t n, float eps) {
  v16 squares{};
  float rest = 0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    v16 a = load(x + i);
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
  for (i = 0; i + 16 <= n; i += 16) store(out + i, load(x + i) * scale * load(w + i));
  for (; i < n; i++) out[i] = x[i] * scale * w[i];
}

void silu_mul(const float* gate, const float* up, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    v16 g = load(gate + i);
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

// Online softmax over blocks. All Q queries walk the same blocks; each has its own last visible position.
template <int Q>
void attend_tile(const float* const* q, const int64_t* last, const float* const* keys, const float* const* values,
                 int64_t dim, float* const* out) {
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
  static const i16v count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int64_t at = 0; at < end; at += kBlock) {
    const float* k = keys[at / kBlock];
    const float* v = values[at / kBlock];
    v16 s0[Q], s1[Q];
#pragma GCC unroll 12
    for (int j = 0; j < Q; j++) s0[j] = v16{}, s1[j] = v16{};
    for (int64_t d = 0; d < dim; d++) {
      v16 k0 = load(k + d * kBlock), k1 = load(k + d * kBlock + 16);
#pragma GCC unroll 12
      for (int j = 0; j < Q; j++) {
        s0[j] += k0 * qt[d][j];
        s1[j] += k1 * qt[d][j];
      }
    }
    for (int j = 0; j < Q; j++) {
      int64_t seen = last[j] + 1 - at;
      if (seen < kBlock) {
        // Unwritten slots hold anything, NaN included: they are replaced, never multiplied.
        int32_t limit = static_cast<int32_t>(seen > 0 ? seen : 0);
        i16v lim = limit - i16v{};
        s0[j] = count < lim ? s0[j] : splat(-3.0e38f);
        s1[j] = count + 16 < lim ? s1[j] : splat(-3.0e38f);
        if (seen <= 0) {
          for (int t = 0; t < kBlock; t++) p[j][t] = 0;
          continue;
        }
      }
      float m = hmax(vmax(s0[j], s1[j]));
      if (m > most[j]) {
        float shrink = sexp(most[j] - m);
        total[j] *= shrink;
        for (int64_t d = 0; d < dim; d += 16) store(&acc[j][d], load(&acc[j][d]) * shrink);
        most[j] = m;
      }
      v16 p0 = vexp(s0[j] - most[j]), p1 = vexp(s1[j] - most[j]);
      total[j] += hsum(p0 + p1);
      store(&p[j][0], p0);
      store(&p[j][16], p1);
    }
    int64_t filled = end - at < kBlock ? end - at : kBlock;
    for (int64_t d = 0; d < dim; d += 16) {
      v16 a[Q];
#pragma GCC unroll 12
      for (int j = 0; j < Q; j++) a[j] = load(&acc[j][d]);
      for (int64_t t = 0; t < filled; t++) {
        v16 x = load(v + t * dim + d);
#pragma GCC unroll 12
        for (int j = 0; j < Q; j++) a[j] += x * p[j][t];
      }
#pragma GCC unroll 12
      for (int j = 0; j < Q; j++) store(&acc[j][d], a[j]);
    }
  }
  for (int j = 0; j < Q; j++) {
    float inverse = 1.0f / total[j];
    for (int64_t d = 0; d < dim; d += 16) store(out[j] + d, load(&acc[j][d]) * inverse);
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
  v16 best = splat(-3.4e38f);
  float m = -3.4e38f;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) best = vmax(best, load(x + i));
  m = hmax(best);
  for (; i < n; i++) m = x[i] > m ? x[i] : m;
  int64_t first = 0;
  while (first < n - 1 && x[first] != m) first++;
  float top = m * scale;
  // Partial sums of 4,096 keep the error of the total small.
  double sum = 0;
  for (i = 0; i + 16 <= n;) {
    v16 part{};
    for (int64_t stop = i + 4096 < n - 15 ? i + 4096 : n - 15; i < stop; i += 16) {
      v16 e = vexp(load(x + i) * scale - top);
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

// Vectors of the low-rank kernels are as wide as the registers, so that halves are widened where they are used.
#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

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

inline float lanes_sum(vec a) {
  float s[kLanes / 2];
  for (int i = 0; i < kLanes / 2; i++) s[i] = a[i] + a[i + kLanes / 2];
#ifdef __AVX512F__
  for (int i = 0; i < 4; i++) s[i] += s[i + 4];
#endif
  return (s[0] + s[2]) + (s[1] + s[3]);
}

template <int R, class W>
inline void shrink_chunk(const W* a, const float* x, int64_t x_stride, vec (&acc)[kShrinkRows][R]) {
#pragma GCC unroll 2
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
    for (int r = 0; r < R; r++) t[r * t_stride + j] = lanes_sum(acc[j][r]) * scales[j];
}

template <class W>
void shrink(const W* a, int64_t in, const float* scales, const float* x, int64_t x_stride, int64_t rows, float* t,
            int64_t t_stride) {
  // As many rows at once as there are registers for their sums.
  constexpr int kRows = kLanes == 16 ? 4 : 2;
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
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[r][v] = widen(y + r * y_stride + v * kLanes);
  for (int64_t k = 0; k < rank; k++) {
    vec w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) w[v] = widen(b + k * kExpandTile + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) acc[r][v] += w[v] * t[r * t_stride + k];
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) *reinterpret_cast<vec*>(y + r * y_stride + v * kLanes) = acc[r][v];
}

template <class W>
void expand(const W* b, int64_t rank, int64_t outs, const float* t, int64_t t_stride, int64_t rows, float* y,
            int64_t y_stride) {
  constexpr int kRows = kLanes == 16 ? 4 : 2;
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
