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
};

extern const EspalierKernels espalier_kernels_base;
extern const EspalierKernels espalier_kernels_v3;
extern const EspalierKernels espalier_kernels_v4;
