// Plain kernels of the decoder, compiled once per instruction set and chosen at start-up.
// Nothing here knows of torch, allocates, or throws; callers have checked every size.
#pragma once
#include <cstdint>

// Tokens in one block of the KV cache. Keys lie [dim][token] inside a block, values [token][dim].
constexpr int64_t kBlock = 32;
// Most queries that one call of `attend` takes.
constexpr int64_t kMaxQueries = 12;
// Longest attention head.
constexpr int64_t kMaxDim = 256;
// Rows of `a` that one call of `lora_shrink` takes, and how many of their columns lie together.
constexpr int64_t kShrinkRows = 4;
constexpr int64_t kShrinkChunk = 16;
// Outputs of one tile of `b` in `lora_expand`.
constexpr int64_t kExpandTile = 32;

struct EspalierKernels {
  // out[i] = x[i] / sqrt(mean(x^2) + eps) * w[i]; when `add` is given, x += add first.
  void (*rms_norm)(float* x, const float* add, const float* w, float* out, int64_t n, float eps);
  // out[i] = silu(gate[i]) * up[i]
  void (*silu_mul)(const float* gate, const float* up, float* out, int64_t n);
  // Rotates one head in place: pairs (i, i + dim / 2), angles given as cos and sin of dim / 2 each.
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t dim);
  // Attention of `n` queries over a paged cache. `q`: n pointers to a head each, already scaled; `last`: the last
  // position each may see; `keys`, `values`: per block, the start of this head's data; `out`: n pointers.
  void (*attend)(const float* const* q, const int64_t* last, int64_t n, const float* const* keys,
                 const float* const* values, int64_t dim, float* const* out);
  // Softmax statistics of one row of logits times `scale`: the largest, its first index, log-sum-exp. Where `probs`
  // is given, exp(x * scale - largest) is written there.
  void (*row_stats)(const float* x, int64_t n, float scale, float* probs, float* largest, int64_t* index, float* lse);
  // out[i] = the half nearest to x[i] * scale, for `n`, a multiple of 16, products up to 32768 in magnitude.
  void (*narrow)(const float* x, float scale, uint16_t* out, int64_t n);
  // The two halves of a low-rank adapter. Weights are floats, or IEEE halves where `half` is set; sums are floats.
  // t[r * t_stride + j] = scales[j] * dot(a row j, x row r) for kShrinkRows rows of `a`, whose first `in` columns count.
  // They lie [chunk][row][kShrinkChunk], the last chunk filled up with zeros.
  void (*lora_shrink)(const void* a, bool half, int64_t in, const float* scales, const float* x, int64_t x_stride,
                      int64_t rows, float* t, int64_t t_stride);
  // y[r * y_stride + j] += sum over k of t[r * t_stride + k] * b[k][j], for the first `outs` <= kExpandTile columns of a
  // tile [rank][kExpandTile]; the columns beyond are there, and zero.
  void (*lora_expand)(const void* b, bool half, int64_t rank, int64_t outs, const float* t, int64_t t_stride,
                      int64_t rows, float* y, int64_t y_stride);
};

extern const EspalierKernels espalier_kernels_base;
extern const EspalierKernels espalier_kernels_v3;
extern const EspalierKernels espalier_kernels_v4;
