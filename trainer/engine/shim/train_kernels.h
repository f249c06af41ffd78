// Row-wise steps of training, forward and backward, compiled once per instruction set and chosen at start-up. Nothing here
// knows of torch, allocates, or throws; callers have checked every size. All matrices are contiguous, row by row. Elements
// are floats, doubles or bfloat16; sums, and whatever is called wide, are doubles for doubles and floats for the rest.
#pragma once
#include <cstdint>

// Index into a table of kernels.
enum EspalierElement { kFloat32 = 0, kFloat64 = 1, kBFloat16 = 2, kElements = 3 };

struct EspalierTrainKernels {
  // out = weight * (x / sqrt(mean(x^2) + eps)), (rows, n). The quotient is rounded before it is multiplied.
  void (*norm)(const void* x, const void* weight, void* out, int64_t rows, int64_t n, double eps);
  // Its gradients: dx, (rows, n); where `dw` (n wide) is given, that of the weight is added to it.
  void (*norm_backward)(const void* dy, const void* x, const void* weight, void* dx, void* dw, int64_t rows, int64_t n,
                        double eps);
  // out = silu(gate) * up, (rows, n), where a row of `gate_up` holds both, one after the other.
  void (*swiglu)(const void* gate_up, void* out, int64_t rows, int64_t n);
  void (*swiglu_backward)(const void* dy, const void* gate_up, void* d_gate_up, int64_t rows, int64_t n);
  // Rows of queries, keys and values, (heads + 2 kv_heads) * dim, to three matrices (rows, heads, dim): queries and keys
  // rotated, halves of a head paired, keys and values once for each query head. Angles: (rows, dim / 2).
  void (*heads)(const void* qkv, const void* cos, const void* sin, void* q, void* k, void* v, int64_t rows, int64_t heads,
                int64_t kv_heads, int64_t dim);
  void (*heads_backward)(const void* dq, const void* dk, const void* dv, const void* cos, const void* sin, void* d_qkv,
                         int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim);
  // Rows of logits, (rows, n), times `scale`: log-probability of each row's target, log-sum-exp, and, where `mean` is given,
  // the mean of the scaled logits under their softmax. All three are wide. With `gradient` the row becomes
  // `by * scale * (onehot(target) - softmax)`, where `by` (wide) is 1 if it is not given. `scratch`: n wide numbers.
  void (*softmax)(void* logits, const int64_t* targets, int64_t rows, int64_t n, double scale, void* logprob, void* lse,
                  void* mean, bool gradient, const void* by, void* scratch);
  // One step of AdamW over n wide numbers; `narrow`, where given, gets the parameters as bfloat16. Not for bfloat16.
  void (*adamw)(void* parameters, void* first, void* second, const void* gradient, void* narrow, int64_t n,
                const struct EspalierAdamW* step);
};

struct EspalierAdamW {
  double beta1, beta2;
  // What the gradient is multiplied with, and the parameters before the step.
  double clip, decay;
  // lr / (1 - beta1^t) and sqrt(1 - beta2^t).
  double rate, correction, eps;
};

extern const EspalierTrainKernels espalier_train_kernels_base[kElements];
extern const EspalierTrainKernels espalier_train_kernels_v3[kElements];
extern const EspalierTrainKernels espalier_train_kernels_v4[kElements];

// The processor's instruction set: 0, base; 1, v3 (AVX2, FMA); 2, v4 (AVX-512).
int espalier_isa();
