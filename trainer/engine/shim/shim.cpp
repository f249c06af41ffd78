// What the engine needs of libtorch beyond tch: 16-bit packed linear layers, and fused decoder steps over tch tensors.
// Every entry checks kinds and sizes, catches every exception, and returns 0, or 1 with a message in `last_error`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/quantized/PackedParams.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "failure.h"
#include "kernels.h"
#include "train_kernels.h"

using at::Tensor;

std::string& espalier_failure() {
  thread_local std::string text;
  return text;
}

int espalier_isa() {
  static const int isa = [] {
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
    return v4 ? 2 : v3 ? 1 : 0;
  }();
  return isa;
}

namespace {

template <class F>
int guard(F f) {
  return espalier_guard([&] {
    at::NoGradGuard no_grad;
    f();
  });
}

const EspalierKernels& kernels() {
  static const EspalierKernels* const chosen[] = {&espalier_kernels_base, &espalier_kernels_v3, &espalier_kernels_v4};
  static const EspalierKernels& own = *chosen[espalier_isa()];
  return own;
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

// One input's share of a low-rank adapter: the layers that read the same rows (queries, keys and values, say), each with
// its place in the packed output. `a` has the rows of all layers, in blocks of kShrinkRows and kShrinkChunk columns; of `b`
// each layer has tiles of kExpandTile outputs, [tile][rank][kExpandTile]. What does not fill a block is filled up with
// zeros. Both lie in the order in which they are read. Halves hold each matrix times the power
// of two that makes its largest magnitude about 1024, so that none is lost below the smallest; `scales` take it back.
struct Lora {
  struct Layer { int64_t rank, first_rank, outputs, first_output, b; };
  // `rank` is that of all layers together, `columns` the inputs, each filled up to whole blocks.
  int64_t inputs, outputs, rank, columns;
  bool half;
  std::vector<Layer> layers;
  std::vector<float> scales;
  // Both matrices, `b` behind `a`.
  Tensor weights;
  const void* at(int64_t element) const {
    return static_cast<const char*>(weights.const_data_ptr()) + element * static_cast<int64_t>(weights.element_size());
  }
};

// The power of two by which a matrix is stored as halves.
float stored_scale(const Tensor& matrix) {
  auto [least, most] = at::aminmax(matrix);
  double largest = std::max(std::abs(least.item<double>()), std::abs(most.item<double>()));
  int exponent = 0;
  std::frexp(largest, &exponent);
  return largest > 0 ? static_cast<float>(std::ldexp(1.0, std::clamp(10 - exponent, -126, 127))) : 1.0f;
}

}  // namespace

extern "C" {

struct EspalierLoraLayer {
  const Tensor* a;
  const Tensor* b;
  double scale;
  int64_t first_output;
};

struct EspalierLoraRows {
  const Lora* lora;
  int64_t first_row, rows;
};

struct EspalierSegment {
  int64_t first_row, rows, first_position;
  const int64_t* blocks;
  int64_t block_count;
};

size_t espalier_last_error(char* out, size_t size) {
  const std::string& text = espalier_failure();
  size_t n = text.size() < size ? text.size() : size;
  std::memcpy(out, text.data(), n);
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

// The weight as floats: what the 16 bits hold.
int espalier_half_unpack(Half* half, Tensor* out) {
  return guard([&] { out->copy_(std::get<0>(half->packed->unpack())); });
}

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

int espalier_lora_pack(const EspalierLoraLayer* layers, int64_t count, int64_t inputs, int64_t outputs, int half, Lora** out) {
  return guard([&] {
    TORCH_CHECK(count > 0 && inputs > 0, "lora: expected at least one layer and one input");
    auto whole = [](int64_t n, int64_t block) { return (n + block - 1) / block * block; };
    auto lora = std::make_unique<Lora>();
    *lora = Lora{inputs, outputs, 0, whole(inputs, kShrinkChunk), half != 0, {}, {}, {}};
    int64_t end = 0;
    for (int64_t i = 0; i < count; i++) {
      const Tensor &a = *layers[i].a, &b = *layers[i].b;
      int64_t first = layers[i].first_output;
      TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.numel() > 0 && b.numel() > 0, "lora: layer ", i, ": expected two matrices");
      int64_t rank = a.size(0), width = b.size(0);
      floats(a, rank, inputs, "a");
      floats(b, width, rank, "b");
      TORCH_CHECK(first >= end && first + width <= outputs, "lora: layer ", i, ": outputs ", first, " + ", width, " after ", end, " of ", outputs);
      end = first + width;
      lora->layers.push_back(Lora::Layer{rank, lora->rank, width, first, 0});
      lora->rank += rank;
    }
    lora->rank = whole(lora->rank, kShrinkRows);
    lora->scales.resize(lora->rank, 0.0f);
    int64_t size = lora->rank * lora->columns;
    for (Lora::Layer& l : lora->layers) l.b = size, size += whole(l.outputs, kExpandTile) * l.rank;
    lora->weights = at::zeros({size}, half ? at::kHalf : at::kFloat);
    const EspalierKernels& k = kernels();
    // Sixteen or more numbers, each times `scale`.
    auto put = [&](int64_t at, const float* from, float scale, int64_t n) {
      if (half) k.narrow(from, scale, static_cast<uint16_t*>(lora->weights.data_ptr()) + at, n);
      else std::memcpy(lora->weights.data_ptr<float>() + at, from, n * sizeof(float));
    };
    for (int64_t i = 0; i < count; i++) {
      const Lora::Layer& l = lora->layers[i];
      const float* a = layers[i].a->data_ptr<float>();
      const float* b = layers[i].b->data_ptr<float>();
      float by_a = half ? stored_scale(*layers[i].a) : 1.0f, by_b = half ? stored_scale(*layers[i].b) : 1.0f;
      std::fill_n(lora->scales.data() + l.first_rank, l.rank, static_cast<float>(layers[i].scale / by_a / by_b));
      at::parallel_for(0, l.rank, 1 + 65536 / inputs, [&](int64_t from, int64_t to) {
        for (int64_t r = from; r < to; r++) {
          int64_t row = l.first_rank + r, block = row / kShrinkRows * kShrinkRows * lora->columns + row % kShrinkRows * kShrinkChunk;
          for (int64_t c = 0; c < inputs; c += kShrinkChunk) {
            float chunk[kShrinkChunk] = {};
            std::memcpy(chunk, a + r * inputs + c, std::min(kShrinkChunk, inputs - c) * sizeof(float));
            put(block + c * kShrinkRows, chunk, by_a, kShrinkChunk);
          }
        }
      });
      at::parallel_for(0, whole(l.outputs, kExpandTile) / kExpandTile, 1 + 65536 / (l.rank * kExpandTile), [&](int64_t from, int64_t to) {
        for (int64_t first = from * kExpandTile; first < to * kExpandTile; first += kExpandTile) {
          for (int64_t r = 0; r < l.rank; r++) {
            float column[kExpandTile] = {};
            for (int64_t j = 0; j < std::min(kExpandTile, l.outputs - first); j++) column[j] = b[(first + j) * l.rank + r];
            put(l.b + first * l.rank + r * kExpandTile, column, by_b, kExpandTile);
          }
        }
      });
    }
    *out = lora.release();
  });
}

void espalier_lora_free(Lora* lora) { delete lora; }

// y += scale * b (a x) for the rows of each group, whose groups are in order and do not overlap.
int espalier_lora_apply(const Tensor* x, const Tensor* y, const EspalierLoraRows* groups, int64_t count) {
  return guard([&] {
    if (count == 0) return;
    TORCH_CHECK(x->dim() == 2 && y->dim() == 2 && x->size(0) == y->size(0), "lora: expected as many rows, got ", x->sizes(), " and ", y->sizes());
    int64_t rows = x->size(0), inputs = x->size(1), outputs = y->size(1), end = 0;
    const float* xs = floats(*x, rows, inputs, "x");
    float* ys = floats(*y, rows, outputs, "y");
    struct Shrink { int64_t group, first; };
    struct Expand { int64_t group, layer, tile; };
    std::vector<Shrink> shrinks;
    std::vector<Expand> expands;
    std::vector<int64_t> scratch;
    int64_t size = 0, weights = 0, taken = 0;
    for (int64_t g = 0; g < count; g++) {
      const EspalierLoraRows& group = groups[g];
      const Lora& lora = *group.lora;
      TORCH_CHECK(lora.inputs == inputs && lora.outputs == outputs, "lora: an adapter of ", lora.inputs, " to ", lora.outputs,
                  ", rows of ", inputs, " to ", outputs);
      TORCH_CHECK(group.rows > 0 && group.first_row >= end && group.first_row + group.rows <= rows,
                  "lora: rows ", group.first_row, " + ", group.rows, " after ", end, " of ", rows);
      end = group.first_row + group.rows;
      scratch.push_back(size);
      size += group.rows * lora.rank;
      weights += lora.rank * (inputs + outputs);
      taken += group.rows;
      for (int64_t first = 0; first < lora.rank; first += kShrinkRows) shrinks.push_back(Shrink{g, first});
      for (int64_t l = 0; l < static_cast<int64_t>(lora.layers.size()); l++)
        for (int64_t tile = 0; tile * kExpandTile < lora.layers[l].outputs; tile++) expands.push_back(Expand{g, l, tile});
    }
    static thread_local std::vector<float> memory;
    if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
    float* t = memory.data();
    const EspalierKernels& k = kernels();
    // Multiplications of each of the two phases, about; a weight that is read costs about as much as eight of them. Waking a
    // thread takes as long as two million.
    int64_t work = weights * (8 + taken / count) / 2;
    auto grain = [&](size_t items) { return 1 + static_cast<int64_t>(items) * 2000000 / work; };
    at::parallel_for(0, shrinks.size(), grain(shrinks.size()), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; i++) {
        const EspalierLoraRows& group = groups[shrinks[i].group];
        const Lora& lora = *group.lora;
        int64_t first = shrinks[i].first;
        k.lora_shrink(lora.at(first * lora.columns), lora.half, inputs, lora.scales.data() + first,
                      xs + group.first_row * inputs, inputs, group.rows, t + scratch[shrinks[i].group] + first, lora.rank);
      }
    });
    at::parallel_for(0, expands.size(), grain(expands.size()), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; i++) {
        const EspalierLoraRows& group = groups[expands[i].group];
        const Lora& lora = *group.lora;
        const Lora::Layer& l = lora.layers[expands[i].layer];
        int64_t at = expands[i].tile * kExpandTile;
        k.lora_expand(lora.at(l.b + at * l.rank), lora.half, l.rank, std::min(kExpandTile, l.outputs - at),
                      t + scratch[expands[i].group] + l.first_rank, lora.rank, group.rows,
                      ys + group.first_row * outputs + l.first_output + at, outputs);
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
