// One translation unit, compiled three times, as kernels.cpp. Loops are plain: the compiler makes vectors of them.
#include "train_kernels.h"

#define ESPALIER_JOIN2(a, b) a##b
#define ESPALIER_JOIN(a, b) ESPALIER_JOIN2(a, b)

namespace {

struct bf16 {
  uint16_t bits;
};

template <class T>
struct Of {
  typedef float wide;
};
template <>
struct Of<double> {
  typedef double wide;
};

inline float wide(float x) { return x; }
inline double wide(double x) { return x; }
inline float wide(bf16 x) {
  union { uint32_t bits; float value; } u = {static_cast<uint32_t>(x.bits) << 16};
  return u.value;
}

inline void put(float& to, float x) { to = x; }
inline void put(double& to, double x) { to = x; }
// To the nearest, and to the even of two; what is not a number stays so.
inline void put(bf16& to, float x) {
  union { float value; uint32_t bits; } u = {x};
  uint32_t rounded = (u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

template <class T, class W>
inline W rounded(W x) {
  T narrow;
  put(narrow, x);
  return wide(narrow);
}

// Relative error below 2e-7; 0 below -87. Range reduction by ln 2 in two parts, then the Taylor polynomial of degree 7.
inline float exponential(float x) {
  bool under = x < -87.0f;
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  float shifted = x * 1.44269504088896341f + magic;
  float n = shifted - magic;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  union { uint32_t bits; float value; } power = {static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23};
  return under ? 0.0f : p * power.value;
}
inline double exponential(double x) { return __builtin_exp(x); }

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }

template <class T, class W = typename Of<T>::wide>
inline W norm_scale(const T* x, int64_t n, W eps) {
  W squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; i++) squares += wide(x[i]) * wide(x[i]);
  return W(1) / root(squares / static_cast<W>(n) + eps);
}

template <class T, class W = typename Of<T>::wide>
void norm(const void* xs, const void* weight, void* outs, int64_t rows, int64_t n, double eps) {
  const T* w = static_cast<const T*>(weight);
  for (int64_t r = 0; r < rows; r++) {
    const T* x = static_cast<const T*>(xs) + r * n;
    T* out = static_cast<T*>(outs) + r * n;
    W scale = norm_scale(x, n, static_cast<W>(eps));
#pragma omp simd
    for (int64_t i = 0; i < n; i++) put(out[i], rounded<T>(wide(x[i]) * scale) * wide(w[i]));
  }
}

// With u = x * scale and g = dy * weight: dx = scale * (g - u * mean(g * u)), dweight = sum over rows of dy * u.
template <class T, class W = typename Of<T>::wide>
void norm_backward(const void* dys, const void* xs, const void* weight, void* dxs, void* d_weight, int64_t rows, int64_t n,
                   double eps) {
  const T* w = static_cast<const T*>(weight);
  W* dw = static_cast<W*>(d_weight);
  for (int64_t r = 0; r < rows; r++) {
    const T* x = static_cast<const T*>(xs) + r * n;
    const T* dy = static_cast<const T*>(dys) + r * n;
    T* dx = static_cast<T*>(dxs) + r * n;
    W scale = norm_scale(x, n, static_cast<W>(eps)), along = 0;
#pragma omp simd reduction(+ : along)
    for (int64_t i = 0; i < n; i++) along += wide(dy[i]) * wide(w[i]) * wide(x[i]);
    along *= scale * scale / static_cast<W>(n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) put(dx[i], scale * (wide(dy[i]) * wide(w[i]) - wide(x[i]) * along));
    if (!dw) continue;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dw[i] += wide(dy[i]) * rounded<T>(wide(x[i]) * scale);
  }
}

template <class T, class W = typename Of<T>::wide>
void swiglu(const void* gate_up, void* outs, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    const T* gate = static_cast<const T*>(gate_up) + r * 2 * n;
    const T* up = gate + n;
    T* out = static_cast<T*>(outs) + r * n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      W g = wide(gate[i]);
      put(out[i], g / (W(1) + exponential(-g)) * wide(up[i]));
    }
  }
}

template <class T, class W = typename Of<T>::wide>
void swiglu_backward(const void* dys, const void* gate_up, void* d_gate_up, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    const T* gate = static_cast<const T*>(gate_up) + r * 2 * n;
    const T* up = gate + n;
    const T* dy = static_cast<const T*>(dys) + r * n;
    T* d_gate = static_cast<T*>(d_gate_up) + r * 2 * n;
    T* d_up = d_gate + n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      W g = wide(gate[i]), d = wide(dy[i]);
      W sigmoid = W(1) / (W(1) + exponential(-g));
      put(d_gate[i], d * wide(up[i]) * sigmoid * (W(1) + g * (W(1) - sigmoid)));
      put(d_up[i], d * g * sigmoid);
    }
  }
}

template <class T>
inline void rotate(const T* x, const T* cos, const T* sin, T* out, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; i++) {
    auto a = wide(x[i]), b = wide(x[i + half]), c = wide(cos[i]), s = wide(sin[i]);
    put(out[i], a * c - b * s);
    put(out[i + half], b * c + a * s);
  }
}

template <class T>
inline void copy(const T* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

template <class T>
void heads(const void* qkvs, const void* coss, const void* sins, void* qs, void* ks, void* vs, int64_t rows, int64_t heads,
           int64_t kv_heads, int64_t dim) {
  int64_t half = dim / 2, group = heads / kv_heads, width = heads * dim;
  for (int64_t r = 0; r < rows; r++) {
    const T* q = static_cast<const T*>(qkvs) + r * (heads + 2 * kv_heads) * dim;
    const T *k = q + width, *v = k + kv_heads * dim;
    const T *cos = static_cast<const T*>(coss) + r * half, *sin = static_cast<const T*>(sins) + r * half;
    T *to_q = static_cast<T*>(qs) + r * width, *to_k = static_cast<T*>(ks) + r * width, *to_v = static_cast<T*>(vs) + r * width;
    for (int64_t h = 0; h < heads; h++) rotate(q + h * dim, cos, sin, to_q + h * dim, half);
    for (int64_t h = 0; h < heads; h++) {
      if (h % group == 0) rotate(k + h / group * dim, cos, sin, to_k + h * dim, half);
      else copy(to_k + (h - h % group) * dim, to_k + h * dim, dim);
      copy(v + h / group * dim, to_v + h * dim, dim);
    }
  }
}

// The sum of the `count` heads that read one head of keys or values, rotated back where angles are given.
template <class T, class W = typename Of<T>::wide>
inline void gather(const T* d, int64_t count, int64_t dim, const T* cos, const T* sin, T* out) {
  int64_t half = dim / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; i++) {
    W a = 0, b = 0;
    for (int64_t h = 0; h < count; h++) a += wide(d[h * dim + i]), b += wide(d[h * dim + i + half]);
    W c = cos ? wide(cos[i]) : W(1), s = cos ? wide(sin[i]) : W(0);
    put(out[i], a * c + b * s);
    put(out[i + half], b * c - a * s);
  }
}

template <class T>
void heads_backward(const void* dqs, const void* dks, const void* dvs, const void* coss, const void* sins, void* d_qkv,
                    int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim) {
  int64_t half = dim / 2, group = heads / kv_heads, width = heads * dim;
  for (int64_t r = 0; r < rows; r++) {
    T* q = static_cast<T*>(d_qkv) + r * (heads + 2 * kv_heads) * dim;
    T *k = q + width, *v = k + kv_heads * dim;
    const T *cos = static_cast<const T*>(coss) + r * half, *sin = static_cast<const T*>(sins) + r * half;
    const T *dq = static_cast<const T*>(dqs) + r * width, *dk = static_cast<const T*>(dks) + r * width;
    const T* dv = static_cast<const T*>(dvs) + r * width;
    for (int64_t h = 0; h < heads; h++) gather(dq + h * dim, 1, dim, cos, sin, q + h * dim);
    for (int64_t h = 0; h < kv_heads; h++) {
      gather(dk + h * group * dim, group, dim, cos, sin, k + h * dim);
      gather<T>(dv + h * group * dim, group, dim, nullptr, nullptr, v + h * dim);
    }
  }
}

template <class T, class W = typename Of<T>::wide>
void softmax(void* logits, const int64_t* targets, int64_t rows, int64_t n, double scale, void* logprob, void* lse, void* mean,
             bool gradient, const void* by, void* scratch) {
  W* e = static_cast<W*>(scratch);
  const W factor = static_cast<W>(scale);
  for (int64_t r = 0; r < rows; r++) {
    T* z = static_cast<T*>(logits) + r * n;
    W most = wide(z[0]) * factor;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) {
      W x = wide(z[i]) * factor;
      e[i] = x;
      most = x > most ? x : most;
    }
    W target = e[targets[r]];
    // Partial sums of 4,096 keep the error of the total small.
    double total = 0, weighted = 0;
    for (int64_t from = 0; from < n; from += 4096) {
      int64_t to = from + 4096 < n ? from + 4096 : n;
      W part = 0, part_weighted = 0;
#pragma omp simd reduction(+ : part, part_weighted)
      for (int64_t i = from; i < to; i++) {
        W x = e[i] - most, p = exponential(x);
        part += p;
        part_weighted += p * x;
        e[i] = p;
      }
      total += part, weighted += part_weighted;
    }
    W log_sum = most + static_cast<W>(__builtin_log(total));
    static_cast<W*>(logprob)[r] = target - log_sum;
    static_cast<W*>(lse)[r] = log_sum;
    if (mean) static_cast<W*>(mean)[r] = most + static_cast<W>(weighted / total);
    if (!gradient) continue;
    W own = by ? static_cast<const W*>(by)[r] : W(1);
    W down = -own * factor / static_cast<W>(total);
    W at_target = e[targets[r]];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) put(z[i], e[i] * down);
    put(z[targets[r]], own * factor + at_target * down);
  }
}

template <class W>
void adamw(void* parameters, void* firsts, void* seconds, const void* gradient, void* narrow, int64_t n,
           const EspalierAdamW* step) {
  W *p = static_cast<W*>(parameters), *m = static_cast<W*>(firsts), *v = static_cast<W*>(seconds);
  const W* g = static_cast<const W*>(gradient);
  const W one_less1 = static_cast<W>(1.0 - step->beta1), beta2 = static_cast<W>(step->beta2);
  const W one_less2 = static_cast<W>(1.0 - step->beta2), clip = static_cast<W>(step->clip);
  const W decay = static_cast<W>(step->decay), rate = static_cast<W>(step->rate), eps = static_cast<W>(step->eps);
  const W correction = static_cast<W>(step->correction);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    W d = g[i] * clip;
    W first = m[i] + one_less1 * (d - m[i]);
    W second = v[i] * beta2 + one_less2 * d * d;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * decay - rate * (first / (root(second) / correction + eps));
  }
  if (!narrow) return;
  bf16* out = static_cast<bf16*>(narrow);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) put(out[i], static_cast<float>(p[i]));
}

}  // namespace

#define ESPALIER_TABLE(T, step) \
  {norm<T>, norm_backward<T>, swiglu<T>, swiglu_backward<T>, heads<T>, heads_backward<T>, softmax<T>, step}

extern const EspalierTrainKernels ESPALIER_JOIN(espalier_train_kernels_, ESPALIER_ISA)[kElements] = {
    ESPALIER_TABLE(float, adamw<float>), ESPALIER_TABLE(double, adamw<double>), ESPALIER_TABLE(bf16, nullptr)};
