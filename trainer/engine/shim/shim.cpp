// What the engine needs of libtorch beyond tch: 16-bit packed linear layers, and fused decoder steps over tch tensors.
// Every entry checks kinds and sizes, catches every exception, and returns 0, or 1 with a message in `last_error`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/quantized/PackedParams.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "kernels.h"

using at::Tensor;

namespace {

thread_local std::string last_error;

template <class F>
int guard(F f) {
  try {
    at::NoGradGuard no_grad;
    f();
    return 0;
  } catch (const c10::Error& e) {
    last_error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "an unknown C++ exception";
  }
  return 1;
}

const EspalierKernels& kernels() {
  static const EspalierKernels& chosen = []() -> const EspalierKernels& {
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
    return v4 ? espalier_kernels_v4 : v3 ? espalier_kernels_v3 : espalier_kernels_base;
  }();
  return chosen;
}

// The data of a contiguous 2-D (or, with rows == 1, 1-D) float tensor of the given width.
float* floats(const Tensor& t, int64_t rows, int64_t width, const char* name) {
  TORCH_CHECK(t.device().is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous() && t.numel() == rows * width,
              "`", name, "`: expected a contiguous float tensor of ", rows, " x ", width, ", got ", t.scalar_type(), " ", t.sizes());
  return t.data_ptr<float>();
}

struct Half {
  c10::intrusive_ptr<LinearPackedParamsBase> packed;
};

// Block: [layer][key, value][head][kBlock * dim].
struct KvPool {
  int64_t layers, heads, dim;
  std::vector<float*> blocks;
  int64_t head_size() const { return kBlock * dim; }
  int64_t floats_per_block() const { return layers * 2 * heads * head_size(); }
  float* keys(int64_t block, int64_t layer, int64_t head) const {
    return blocks[block] + ((layer * 2) * heads + head) * head_size();
  }
  float* values(int64_t block, int64_t layer, int64_t head) const {
    return blocks[block] + ((layer * 2 + 1) * heads + head) * head_size();
  }
  void check(int64_t block) const {
    TORCH_CHECK(block >= 0 && block < static_cast<int64_t>(blocks.size()) && blocks[block], "cache block ", block, " is not allocated");
  }
  ~KvPool() {
    for (float* b : blocks) std::free(b);
  }
};

}  // namespace

extern "C" {

struct EspalierSegment {
  int64_t first_row, rows, first_position;
  const int64_t* blocks;
  int64_t block_count;
};

size_t espalier_last_error(char* out, size_t size) {
  size_t n = last_error.size() < size ? last_error.size() : size;
  std::memcpy(out, last_error.data(), n);
  return n;
}

int espalier_half_pack(Tensor* weight, Half** out) {
  return guard([&] {
    static auto prepack = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("quantized::linear_prepack_fp16", "")
                              .typed<c10::intrusive_ptr<LinearPackedParamsBase>(Tensor, std::optional<Tensor>)>();
    *out = new Half{prepack.call(*weight, std::nullopt)};
  });
}

void espalier_half_free(Half* half) { delete half; }

int espalier_half_apply(Half* half, Tensor* x, Tensor* out) {
  return guard([&] { half->packed->apply_dynamic_out(*x, *out, false); });
}

KvPool* espalier_kv_new(int64_t layers, int64_t heads, int64_t dim) {
  return new (std::nothrow) KvPool{layers, heads, dim, {}};
}

void espalier_kv_free(KvPool* pool) { delete pool; }

int espalier_kv_allocate(KvPool* pool, int64_t block) {
  return guard([&] {
    TORCH_CHECK(block >= 0 && block <= static_cast<int64_t>(pool->blocks.size()), "cache block ", block, " comes out of order");
    if (block == static_cast<int64_t>(pool->blocks.size())) pool->blocks.push_back(nullptr);
    if (pool->blocks[block]) return;
    void* memory = nullptr;
    TORCH_CHECK(posix_memalign(&memory, 64, pool->floats_per_block() * sizeof(float)) == 0, "out of memory for the KV cache");
    pool->blocks[block] = static_cast<float*>(memory);
  });
}

int espalier_kv_copy(KvPool* pool, int64_t from, int64_t to) {
  return guard([&] {
    pool->check(from);
    pool->check(to);
    std::memcpy(pool->blocks[to], pool->blocks[from], pool->floats_per_block() * sizeof(float));
  });
}

int espalier_rms_norm(Tensor* x, Tensor* add, Tensor* weight, Tensor* out, double eps) {
  return guard([&] {
    int64_t width = weight->numel(), rows = x->numel() / width;
    float* xs = floats(*x, rows, width, "x");
    const float* as = add ? floats(*add, rows, width, "add") : nullptr;
    const float* w = floats(*weight, 1, width, "weight");
    float* o = floats(*out, rows, width, "out");
    at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        kernels().rms_norm(xs + i * width, as ? as + i * width : nullptr, w, o + i * width, width, static_cast<float>(eps));
    });
  });
}

int espalier_silu_mul(Tensor* gate_up, Tensor* out) {
  return guard([&] {
    TORCH_CHECK(out->dim() == 2, "`out`: expected two dimensions, got ", out->sizes());
    int64_t rows = out->size(0), width = out->size(1);
    const float* g = floats(*gate_up, rows, 2 * width, "gate_up");
    float* o = floats(*out, rows, width, "out");
    at::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        kernels().silu_mul(g + i * 2 * width, g + i * 2 * width + width, o + i * width, width);
    });
  });
}

// Rotates queries and keys of `qkv`, writes keys and values of every row into the cache, then lets every query attend
// to its own sequence up to itself. `q_norm`, `k_norm` (may be null) are RMS norms over each head, before the rotation.
int espalier_attention(Tensor* qkv, Tensor* cos, Tensor* sin, Tensor* q_norm, Tensor* k_norm, double eps, Tensor* out,
                       KvPool* pool, int64_t layer, int64_t query_heads, const EspalierSegment* segments, int64_t segment_count) {
  return guard([&] {
    int64_t dim = pool->dim, kv_heads = pool->heads, group = query_heads / kv_heads;
    TORCH_CHECK(dim % 16 == 0 && dim <= kMaxDim && group * kv_heads == query_heads && group > 0 && layer >= 0 && layer < pool->layers,
                "attention: unsupported shape: head dimension ", dim, ", ", query_heads, " query heads, ", kv_heads, " key heads, layer ", layer);
    int64_t rows = qkv->size(0), width = (query_heads + 2 * kv_heads) * dim;
    float* x = floats(*qkv, rows, width, "qkv");
    float* o = floats(*out, rows, query_heads * dim, "out");
    int64_t positions = cos->size(0);
    const float* cosines = floats(*cos, positions, dim / 2, "cos");
    const float* sines = floats(*sin, positions, dim / 2, "sin");
    const float* qw = q_norm ? floats(*q_norm, 1, dim, "q_norm") : nullptr;
    const float* kw = k_norm ? floats(*k_norm, 1, dim, "k_norm") : nullptr;

    struct Row { int64_t segment, position; };
    struct Tile { int64_t segment, first, count, head; };
    std::vector<Row> row_of(rows, Row{-1, 0});
    std::vector<Tile> tiles;
    std::vector<const float*> bases;
    std::vector<int64_t> base_of;
    for (int64_t s = 0; s < segment_count; s++) {
      const EspalierSegment& g = segments[s];
      int64_t end = g.first_position + g.rows;
      TORCH_CHECK(g.rows > 0 && g.first_row >= 0 && g.first_row + g.rows <= rows && g.first_position >= 0 && end <= positions &&
                      (end + kBlock - 1) / kBlock <= g.block_count,
                  "attention: segment ", s, ": rows ", g.first_row, " + ", g.rows, " of ", rows, ", positions ", g.first_position, " to ",
                  end, " of ", positions, ", ", g.block_count, " blocks");
      for (int64_t b = 0; b < (end + kBlock - 1) / kBlock; b++) pool->check(g.blocks[b]);
      for (int64_t r = 0; r < g.rows; r++) row_of[g.first_row + r] = Row{s, g.first_position + r};
      // Queries of one key head, (row, head in group) flattened, in tiles.
      int64_t queries = g.rows * group;
      for (int64_t h = 0; h < kv_heads; h++)
        for (int64_t first = 0; first < queries; first += kMaxQueries)
          tiles.push_back(Tile{s, first, std::min(kMaxQueries, queries - first), h});
    }
    float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    const EspalierKernels& k = kernels();
    at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        if (row_of[r].segment < 0) continue;
        const EspalierSegment& g = segments[row_of[r].segment];
        int64_t position = row_of[r].position, block = g.blocks[position / kBlock], slot = position % kBlock;
        const float* c = cosines + position * (dim / 2);
        const float* s = sines + position * (dim / 2);
        float* row = x + r * width;
        for (int64_t h = 0; h < query_heads + kv_heads; h++) {
          float* head = row + h * dim;
          const float* w = h < query_heads ? qw : kw;
          if (w) k.rms_norm(head, nullptr, w, head, dim, static_cast<float>(eps));
          k.rotate(head, c, s, dim);
          if (h < query_heads)
            for (int64_t d = 0; d < dim; d++) head[d] *= scale;
        }
        for (int64_t h = 0; h < kv_heads; h++) {
          const float* key = row + (query_heads + h) * dim;
          const float* value = row + (query_heads + kv_heads + h) * dim;
          float* keys = pool->keys(block, layer, h) + slot;
          for (int64_t d = 0; d < dim; d++) keys[d * kBlock] = key[d];
          std::memcpy(pool->values(block, layer, h) + slot * dim, value, dim * sizeof(float));
        }
      }
    });
    at::parallel_for(0, static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end) {
      std::vector<const float*> keys, values;
      for (int64_t i = begin; i < end; i++) {
        const Tile& tile = tiles[i];
        const EspalierSegment& g = segments[tile.segment];
        const float* q[kMaxQueries];
        float* target[kMaxQueries];
        int64_t last[kMaxQueries], most = 0;
        for (int64_t j = 0; j < tile.count; j++) {
          int64_t r = (tile.first + j) / group, h = tile.head * group + (tile.first + j) % group;
          q[j] = x + (g.first_row + r) * width + h * dim;
          target[j] = o + (g.first_row + r) * query_heads * dim + h * dim;
          last[j] = g.first_position + r;
          most = std::max(most, last[j]);
        }
        int64_t blocks = most / kBlock + 1;
        keys.resize(blocks);
        values.resize(blocks);
        for (int64_t b = 0; b < blocks; b++) {
          keys[b] = pool->keys(g.blocks[b], layer, tile.head);
          values[b] = pool->values(g.blocks[b], layer, tile.head);
        }
        k.attend(q, last, tile.count, keys.data(), values.data(), dim, target);
      }
    });
  });
}

// Softmax statistics of every row; see `row_stats` in kernels.h. `probs` may be null.
int espalier_row_stats(Tensor* logits, const float* scales, Tensor* probs, float* largest, int64_t* index, float* lse) {
  return guard([&] {
    TORCH_CHECK(logits->dim() == 2 && logits->size(1) > 0, "`logits`: expected two dimensions, got ", logits->sizes());
    int64_t rows = logits->size(0), width = logits->size(1);
    const float* x = floats(*logits, rows, width, "logits");
    float* p = probs ? floats(*probs, rows, width, "probs") : nullptr;
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        kernels().row_stats(x + i * width, width, scales[i], p ? p + i * width : nullptr, largest + i, index + i, lse + i);
    });
  });
}

}  // extern "C"
