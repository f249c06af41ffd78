// Steps of a decoder that trains, as nodes of torch's autograd. Each keeps the least that its gradient needs: a linear layer
// its input before the norm or the SwiGLU in front of it, which are cheaper to compute again than to keep; attention the
// packed projections, its output and the log-sum-exps.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdlib>
#include <vector>

#include "failure.h"
#include "train_kernels.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Maybe = std::optional<Tensor>;

extern "C" {

// What stands in front of a linear layer.
enum EspalierBefore { kNothing = 0, kNorm = 1, kSwiglu = 2 };

struct EspalierTrainLinear {
  const Tensor *x, *norm, *weight, *bias, *a;
  // One matrix for each part that an adapter changes, with its first output.
  const Tensor* b[3];
  int64_t first[3];
  int64_t rank, before;
  double eps, scaling, dropout;
};

struct EspalierRun {
  int64_t start, count, length;
};

}  // extern "C"

namespace {

const EspalierTrainKernels& kernels(const Tensor& t) {
  static const EspalierTrainKernels* const chosen[] = {espalier_train_kernels_base, espalier_train_kernels_v3, espalier_train_kernels_v4};
  static const EspalierTrainKernels* const own = chosen[espalier_isa()];
  switch (t.scalar_type()) {
    case at::kFloat: return own[kFloat32];
    case at::kDouble: return own[kFloat64];
    case at::kBFloat16: return own[kBFloat16];
    default: TORCH_CHECK(false, "training: expected float, double or bfloat16, got ", t.scalar_type());
  }
}

// Without AVX-512 torch multiplies matrices of bfloat16 number by number, ten to fifty times slower than as floats: there
// they are widened for the product, which costs a few percent of it.
bool slow_products(at::ScalarType type) { return type == at::kBFloat16 && espalier_isa() < 2; }

Tensor for_product(const Tensor& t) { return t.defined() && slow_products(t.scalar_type()) ? t.to(at::kFloat) : t; }

at::ScalarType wide(const Tensor& t) { return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// The data of a contiguous matrix of the given shape and type.
const char* data(const Tensor& t, at::ScalarType type, int64_t rows, int64_t width, const char* name) {
  TORCH_CHECK(t.device().is_cpu() && t.scalar_type() == type && t.is_contiguous() && t.numel() == rows * width,
              "`", name, "`: expected a contiguous ", type, " matrix of ", rows, " x ", width, ", got ", t.scalar_type(), " ", t.sizes());
  return static_cast<const char*>(t.const_data_ptr());
}

char* data_of(Tensor& t) { return static_cast<char*>(t.mutable_data_ptr()); }

// Rows in pieces of about 64 K elements.
template <class F>
void by_rows(int64_t rows, int64_t width, F f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, width)), [&](int64_t from, int64_t to) { f(from, to - from); });
}

Tensor normed(const Tensor& x, const Tensor& weight, double eps) {
  int64_t rows = x.size(0), n = x.size(1), size = static_cast<int64_t>(x.element_size());
  Tensor out = at::empty_like(x);
  const char *xs = data(x, x.scalar_type(), rows, n, "x"), *w = data(weight, x.scalar_type(), 1, n, "norm");
  char* outs = data_of(out);
  by_rows(rows, n, [&](int64_t r, int64_t count) { kernels(x).norm(xs + r * n * size, w, outs + r * n * size, count, n, eps); });
  return out;
}

// Gradients of `normed`: of x, and of the weight where it is trained. Sums over rows are of sixteen fixed stretches, so that
// they do not depend on the number of threads.
std::pair<Tensor, Tensor> normed_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, double eps, bool trained) {
  constexpr int64_t kStretches = 16;
  int64_t rows = x.size(0), n = x.size(1), size = static_cast<int64_t>(x.element_size());
  Tensor dx = at::empty_like(x), sums;
  if (trained) sums = at::zeros({kStretches, n}, x.options().dtype(wide(x)));
  const char *dys = data(dy, x.scalar_type(), rows, n, "dy"), *xs = data(x, x.scalar_type(), rows, n, "x");
  const char* w = data(weight, x.scalar_type(), 1, n, "norm");
  char *dxs = data_of(dx), *dws = trained ? data_of(sums) : nullptr;
  int64_t each = (rows + kStretches - 1) / kStretches, wide_row = trained ? n * static_cast<int64_t>(sums.element_size()) : 0;
  at::parallel_for(0, kStretches, 1, [&](int64_t from, int64_t to) {
    for (int64_t s = from; s < to; s++) {
      int64_t r = std::min(rows, s * each), count = std::min(rows, r + each) - r, at = r * n * size;
      kernels(x).norm_backward(dys + at, xs + at, w, dxs + at, dws ? dws + s * wide_row : nullptr, count, n, eps);
    }
  });
  return {dx, trained ? sums.sum(0).to(weight.scalar_type()) : Tensor()};
}

Tensor activated(const Tensor& gate_up) {
  int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2, size = static_cast<int64_t>(gate_up.element_size());
  Tensor out = at::empty({rows, n}, gate_up.options());
  const char* from = data(gate_up, gate_up.scalar_type(), rows, 2 * n, "gate_up");
  char* outs = data_of(out);
  by_rows(rows, n, [&](int64_t r, int64_t count) { kernels(out).swiglu(from + r * 2 * n * size, outs + r * n * size, count, n); });
  return out;
}

Tensor activated_backward(const Tensor& dy, const Tensor& gate_up) {
  int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2, size = static_cast<int64_t>(gate_up.element_size());
  Tensor out = at::empty_like(gate_up);
  const char *dys = data(dy, gate_up.scalar_type(), rows, n, "dy"), *from = data(gate_up, gate_up.scalar_type(), rows, 2 * n, "gate_up");
  char* outs = data_of(out);
  by_rows(rows, n, [&](int64_t r, int64_t count) {
    kernels(out).swiglu_backward(dys + r * n * size, from + r * 2 * n * size, outs + r * 2 * n * size, count, n);
  });
  return out;
}

// y = W before(x) + bias + scaling * B (A dropped(before(x))), parts of B side by side.
struct Linear : torch::autograd::Function<Linear> {
  struct Shape {
    int64_t before, rank;
    std::vector<int64_t> first;
    double eps, scaling, dropout;
  };

  static Tensor input(int64_t before, const Tensor& x, const Tensor& norm, double eps) {
    return before == kNorm ? normed(x, norm, eps) : before == kSwiglu ? activated(x) : x;
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Maybe& norm, const Tensor& weight, const Maybe& bias,
                        const Maybe& a, const Maybe& b0, const Maybe& b1, const Maybe& b2, const Shape& s) {
    Tensor h = for_product(input(s.before, x, norm.value_or(Tensor()), s.eps)), w = for_product(weight);
    Tensor y = bias ? at::addmm(for_product(*bias), h, w.t()) : at::mm(h, w.t());
    w = Tensor();
    Tensor low, kept;
    if (a) {
      if (s.dropout > 0) kept = at::empty_like(h).bernoulli_(1 - s.dropout).div_(1 - s.dropout);
      low = at::mm(kept.defined() ? h * kept : h, for_product(*a).t());
      const Maybe* parts[] = {&b0, &b1, &b2};
      for (int64_t i = 0; i < static_cast<int64_t>(s.first.size()); i++) {
        Tensor b = for_product(**parts[i]);
        y.narrow(1, s.first[i], b.size(0)).addmm_(low.narrow(1, i * s.rank, s.rank), b.t(), 1, s.scaling);
      }
    }
    auto or_none = [](const Maybe& t) { return t.value_or(Tensor()); };
    ctx->save_for_backward({x, or_none(norm), weight, or_none(a), or_none(b0), or_none(b1), or_none(b2), low, kept});
    ctx->saved_data["before"] = s.before;
    ctx->saved_data["rank"] = s.rank;
    ctx->saved_data["first"] = s.first;
    ctx->saved_data["eps"] = s.eps;
    ctx->saved_data["scaling"] = s.scaling;
    ctx->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    return y.to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &norm = saved[1], &weight = saved[2], &a = saved[3], &low = saved[7], &kept = saved[8];
    auto type = x.scalar_type();
    int64_t before = ctx->saved_data["before"].toInt(), rank = ctx->saved_data["rank"].toInt();
    double eps = ctx->saved_data["eps"].toDouble(), scaling = ctx->saved_data["scaling"].toDouble();
    std::vector<int64_t> first = ctx->saved_data["first"].toIntVector();
    Tensor dy = for_product(gradients[0].contiguous());
    variable_list d(9);
    Tensor h;
    if (weight.requires_grad() || (a.defined() && a.requires_grad())) h = for_product(input(before, x, norm, eps));
    if (weight.requires_grad()) d[2] = at::mm(dy.t(), h).to(type);
    if (ctx->saved_data["bias"].toBool()) d[3] = dy.sum(0).to(type);
    bool through = x.requires_grad() || (norm.defined() && norm.requires_grad());
    Tensor dh = through ? at::mm(dy, for_product(weight)) : Tensor();
    if (a.defined()) {
      Tensor d_low = at::empty_like(low);
      for (int64_t i = 0; i < static_cast<int64_t>(first.size()); i++) {
        const Tensor b = for_product(saved[4 + i]);
        Tensor own = dy.narrow(1, first[i], b.size(0)), part = low.narrow(1, i * rank, rank);
        d_low.narrow(1, i * rank, rank).addmm_(own, b, 0, scaling);
        if (saved[4 + i].requires_grad()) d[5 + i] = at::empty_like(b).addmm_(own.t(), part, 0, scaling).to(type);
      }
      if (a.requires_grad()) d[4] = at::mm(d_low.t(), kept.defined() ? h * kept : h).to(type);
      if (through && kept.defined()) dh.addcmul_(at::mm(d_low, for_product(a)), kept);
      else if (through) dh.addmm_(d_low, for_product(a));
    }
    h = Tensor();
    if (!through) return d;
    dh = dh.to(type);
    if (before == kNorm) std::tie(d[0], d[1]) = normed_backward(dh, x, norm, eps, norm.requires_grad());
    else d[0] = before == kSwiglu ? activated_backward(dh, x) : dh;
    return d;
  }
};

struct Projections {
  Tensor q, k, v;
};

// Causal attention of packed sequences: (rows, (heads + 2 kv_heads) * dim) to (rows, heads * dim).
struct Attention : torch::autograd::Function<Attention> {
  struct Shape {
    int64_t heads, kv_heads, dim;
    // Three numbers a run: start, count, length.
    std::vector<int64_t> runs;
  };

  static Projections project(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Shape& s) {
    int64_t rows = qkv.size(0), size = static_cast<int64_t>(qkv.element_size()), half = s.dim / 2;
    int64_t packed = (s.heads + 2 * s.kv_heads) * s.dim, width = s.heads * s.dim;
    auto type = qkv.scalar_type();
    const char *from = data(qkv, type, rows, packed, "qkv"), *c = data(cos, type, rows, half, "cos"), *n = data(sin, type, rows, half, "sin");
    auto whole = [&] { return at::empty({rows, s.heads, s.dim}, qkv.options()); };
    Projections p{whole(), whole(), whole()};
    char *q = data_of(p.q), *k = data_of(p.k), *v = data_of(p.v);
    by_rows(rows, packed, [&](int64_t r, int64_t count) {
      int64_t angle = r * half * size, to = r * width * size;
      kernels(qkv).heads(from + r * packed * size, c + angle, n + angle, q + to, k + to, v + to, count, s.heads, s.kv_heads, s.dim);
    });
    return p;
  }

  // The (count, heads, length, dim) of one run.
  static Tensor part(const Tensor& whole, const Shape& s, size_t run) {
    int64_t start = s.runs[run], count = s.runs[run + 1], length = s.runs[run + 2];
    return whole.narrow(0, start, count * length).view({count, length, s.heads, s.dim}).transpose(1, 2);
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Shape& s) {
    Projections p = project(qkv, cos, sin, s);
    int64_t rows = qkv.size(0), width = s.heads * s.dim;
    Tensor out;
    variable_list kept{qkv, cos, sin, Tensor()};
    for (size_t run = 0; run < s.runs.size(); run += 3) {
      auto [own, lse] = at::_scaled_dot_product_flash_attention_for_cpu(part(p.q, s, run), part(p.k, s, run), part(p.v, s, run), 0.0, true);
      Tensor flat = own.transpose(1, 2).reshape({s.runs[run + 1] * s.runs[run + 2], width});
      if (s.runs.size() == 3) {
        out = flat;
      } else {
        if (!out.defined()) out = at::empty({rows, width}, qkv.options());
        out.narrow(0, s.runs[run], flat.size(0)).copy_(flat);
      }
      kept.push_back(lse);
    }
    kept[3] = out;
    ctx->save_for_backward(std::move(kept));
    ctx->saved_data["shape"] = std::vector<int64_t>{s.heads, s.kv_heads, s.dim};
    ctx->saved_data["runs"] = s.runs;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    variable_list saved = ctx->get_saved_variables();
    const Tensor &qkv = saved[0], &cos = saved[1], &sin = saved[2], &out = saved[3];
    std::vector<int64_t> sizes = ctx->saved_data["shape"].toIntVector();
    Shape s{sizes[0], sizes[1], sizes[2], ctx->saved_data["runs"].toIntVector()};
    Projections p = project(qkv, cos, sin, s), d;
    Tensor dy = gradients[0].contiguous();
    int64_t rows = qkv.size(0), size = static_cast<int64_t>(qkv.element_size()), half = s.dim / 2;
    int64_t packed = (s.heads + 2 * s.kv_heads) * s.dim, width = s.heads * s.dim;
    for (size_t run = 0; run < s.runs.size(); run += 3) {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          part(dy, s, run), part(p.q, s, run), part(p.k, s, run), part(p.v, s, run), part(out, s, run), saved[4 + run / 3], 0.0, true);
      auto flat = [&](const Tensor& t) { return t.transpose(1, 2).reshape({s.runs[run + 1] * s.runs[run + 2], width}); };
      if (s.runs.size() == 3) {
        d = {flat(dq), flat(dk), flat(dv)};
      } else {
        if (!d.q.defined()) d = {at::empty({rows, width}, qkv.options()), at::empty({rows, width}, qkv.options()), at::empty({rows, width}, qkv.options())};
        auto place = [&](Tensor& whole, const Tensor& t) { whole.narrow(0, s.runs[run], s.runs[run + 1] * s.runs[run + 2]).copy_(flat(t)); };
        place(d.q, dq), place(d.k, dk), place(d.v, dv);
      }
    }
    Tensor d_qkv = at::empty_like(qkv);
    auto type = qkv.scalar_type();
    d.q = d.q.contiguous(), d.k = d.k.contiguous(), d.v = d.v.contiguous();
    const char *dq = data(d.q, type, rows, width, "dq"), *dk = data(d.k, type, rows, width, "dk"), *dv = data(d.v, type, rows, width, "dv");
    const char *c = data(cos, type, rows, half, "cos"), *n = data(sin, type, rows, half, "sin");
    char* to = data_of(d_qkv);
    by_rows(rows, packed, [&](int64_t r, int64_t count) {
      int64_t angle = r * half * size, at = r * width * size;
      kernels(qkv).heads_backward(dq + at, dk + at, dv + at, c + angle, n + angle, to + r * packed * size, count, s.heads, s.kv_heads, s.dim);
    });
    return {d_qkv, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

extern "C" {

int espalier_train_linear(const EspalierTrainLinear* l, Tensor* out) {
  return espalier_guard([&] {
    auto maybe = [](const Tensor* t) { return t ? Maybe(*t) : Maybe(); };
    const Tensor &x = *l->x, &weight = *l->weight;
    TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.scalar_type() == weight.scalar_type(), "linear: expected two matrices of one type, got ",
                x.scalar_type(), " ", x.sizes(), " and ", weight.scalar_type(), " ", weight.sizes());
    TORCH_CHECK(l->before != kNorm || l->norm, "linear: expected the norm's weight");
    Linear::Shape shape{l->before, l->rank, {}, l->eps, l->scaling, l->dropout};
    for (int i = 0; i < 3 && l->b[i]; i++) {
      TORCH_CHECK(l->a && l->b[i]->size(1) == l->rank && l->first[i] + l->b[i]->size(0) <= weight.size(0), "linear: part ", i,
                  " of the adapter: ", l->b[i]->sizes(), " at output ", l->first[i], ", rank ", l->rank);
      shape.first.push_back(l->first[i]);
    }
    *out = Linear::apply(x, maybe(l->norm), weight, maybe(l->bias), maybe(l->a), maybe(l->b[0]), maybe(l->b[1]), maybe(l->b[2]), shape);
  });
}

int espalier_train_attention(const Tensor* qkv, const Tensor* cos, const Tensor* sin, int64_t heads, int64_t kv_heads, int64_t dim,
                             const EspalierRun* runs, int64_t count, Tensor* out) {
  return espalier_guard([&] {
    TORCH_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && dim > 0 && dim % 2 == 0, "attention: ", heads, " heads over ",
                kv_heads, " of ", dim);
    Attention::Shape shape{heads, kv_heads, dim, {}};
    int64_t end = 0;
    for (int64_t i = 0; i < count; i++) {
      TORCH_CHECK(runs[i].start == end && runs[i].count > 0 && runs[i].length > 0, "attention: run ", i, " begins at ", runs[i].start,
                  ", expected ", end);
      end += runs[i].count * runs[i].length;
      shape.runs.insert(shape.runs.end(), {runs[i].start, runs[i].count, runs[i].length});
    }
    TORCH_CHECK(end == qkv->size(0), "attention: runs of ", end, " rows, expected ", qkv->size(0));
    *out = Attention::apply(*qkv, *cos, *sin, shape);
  });
}

// Wide (rows) results; `mean` and `by` may be null, and then are not written or count as 1. With `gradient`, `logits` turn
// into what multiplies the weight's rows.
int espalier_train_softmax(const Tensor* logits, const Tensor* targets, double scale, const Tensor* logprob, const Tensor* lse,
                           const Tensor* mean, int gradient, const Tensor* by) {
  return espalier_guard([&] {
    int64_t rows = logits->size(0), n = logits->size(1);
    auto type = wide(*logits);
    int64_t size = static_cast<int64_t>(logits->element_size()), wide_size = type == at::kDouble ? 8 : 4;
    TORCH_CHECK(rows == 0 || n > 0, "softmax: rows without logits");
    TORCH_CHECK(targets->scalar_type() == at::kLong && targets->is_contiguous() && targets->numel() == rows, "softmax: expected ", rows, " targets");
    auto row = [&](const Tensor* t, const char* name) { return t ? const_cast<char*>(data(*t, type, rows, 1, name)) : nullptr; };
    char *z = const_cast<char*>(data(*logits, logits->scalar_type(), rows, n, "logits")), *l = row(logprob, "logprob"), *s = row(lse, "lse");
    char *m = row(mean, "mean"), *own = row(by, "by");
    const int64_t* t = targets->const_data_ptr<int64_t>();
    for (int64_t r = 0; r < rows; r++) TORCH_CHECK(t[r] >= 0 && t[r] < n, "softmax: target ", t[r], " of ", n);
    by_rows(rows, n, [&](int64_t r, int64_t count) {
      std::vector<double> scratch(n);
      auto at = [&](char* p) { return p ? p + r * wide_size : nullptr; };
      kernels(*logits).softmax(z + r * n * size, t + r, count, n, scale, at(l), at(s), at(m), gradient != 0, at(own), scratch.data());
    });
  });
}

// One step over n numbers; `narrow` may be null.
int espalier_train_adamw(const Tensor* parameters, const Tensor* first, const Tensor* second, const Tensor* gradient, const Tensor* narrow,
                         const EspalierAdamW* step) {
  return espalier_guard([&] {
    int64_t n = parameters->numel(), size = static_cast<int64_t>(parameters->element_size());
    auto type = parameters->scalar_type();
    TORCH_CHECK(type == at::kFloat || type == at::kDouble, "adamw: expected float or double parameters, got ", type);
    auto of = [&](const Tensor* t, const char* name) { return const_cast<char*>(data(*t, type, n, 1, name)); };
    char *p = of(parameters, "parameters"), *m = of(first, "first"), *v = of(second, "second"), *g = of(gradient, "gradient");
    char* out = narrow ? const_cast<char*>(data(*narrow, at::kBFloat16, n, 1, "narrow")) : nullptr;
    at::parallel_for(0, n, 65536, [&](int64_t from, int64_t to) {
      int64_t at = from * size;
      kernels(*parameters).adamw(p + at, m + at, v + at, g + at, out ? out + from * 2 : nullptr, to - from, step);
    });
  });
}

int espalier_slow_products() { return slow_products(at::kBFloat16); }

// A training step asks for the same memory again and again: what is freed is kept, and large blocks come in large pages.
// Must run before the first tensor is made.
void espalier_keep_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2000000000);
  mallopt(M_TOP_PAD, 64 << 20);
  setenv("THP_MEM_ALLOC_ENABLE", "1", 0);
}

}  // extern "C"
