// What the process groups need of c10d: stores, a Gloo group, and four collectives that block until a deadline.
// Every entry checks its tensors, catches every exception, and returns 0, or 1 with a message in `last_error`.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

using at::Tensor;
using std::chrono::milliseconds;

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

using Store = c10::intrusive_ptr<c10d::Store>;

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  int64_t world;
};

// Gloo reads and writes raw memory, and trusts that every rank's sizes agree.
void dense(const Tensor& t, const char* name) {
  TORCH_CHECK(t.defined() && t.layout() == at::kStrided && t.device().is_cpu() && t.is_contiguous(),
              "`", name, "`: expected a contiguous CPU tensor, got ", t.toString(), " ", t.sizes());
}

void pair(const Tensor& out, const Tensor& in, int64_t out_elements) {
  dense(out, "out");
  dense(in, "in");
  TORCH_CHECK(out.scalar_type() == in.scalar_type() && out.numel() == out_elements, "`out`: expected ", out_elements, " elements of ",
              in.scalar_type(), ", got ", out.numel(), " of ", out.scalar_type());
}

// Queues a collective and waits for its end. c10d's flight recorder changes a map of its own without a lock whenever a
// group queues something: with several groups in one process, that is a race unless they queue one at a time.
template <class F>
void finish(F start, int64_t timeout_ms) {
  static std::mutex queueing;
  c10::intrusive_ptr<c10d::Work> work;
  {
    std::lock_guard<std::mutex> lock(queueing);
    work = start();
  }
  work->wait(milliseconds(timeout_ms));
}

}  // namespace

extern "C" {

size_t espalier_c10d_last_error(char* out, size_t size) {
  size_t n = last_error.size() < size ? last_error.size() : size;
  std::memcpy(out, last_error.data(), n);
  return n;
}

int espalier_c10d_store_hash(Store** out) {
  return guard([&] { *out = new Store(c10::make_intrusive<c10d::HashStore>()); });
}

// A client of the store at `host`:`port`; where `listener` is a descriptor, also its server on that listening socket,
// which then belongs to it.
int espalier_c10d_store_tcp(const char* host, uint16_t port, int listener, int64_t timeout_ms, Store** out) {
  return guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = listener >= 0;
    if (listener >= 0) options.masterListenFd = listener;
    options.waitWorkers = false;  // the group's own rendezvous waits for them
    options.timeout = milliseconds(timeout_ms);
    *out = new Store(c10::make_intrusive<c10d::TCPStore>(host, options));
  });
}

void espalier_c10d_store_free(Store* store) { delete store; }

// Connects all ranks pairwise. `devices` are names of network interfaces, or, where `by_address`, local addresses.
int espalier_c10d_group_new(const Store* store, const char* prefix, int rank, int world, int64_t timeout_ms,
                            const char* const* devices, size_t device_count, int by_address, Group** out) {
  return guard([&] {
    TORCH_CHECK(world > 0 && rank >= 0 && rank < world, "expected a rank below the world size ", world, ", got ", rank);
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    options->threads = 1;  // collectives come one by one
    for (size_t i = 0; i < device_count; i++)
      options->devices.push_back(by_address ? c10d::ProcessGroupGloo::createDeviceForHostname(devices[i])
                                            : c10d::ProcessGroupGloo::createDeviceForInterface(devices[i]));
    auto keys = c10::make_intrusive<c10d::PrefixStore>(prefix, *store);
    keys->setTimeout(milliseconds(timeout_ms));
    *out = new Group{c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank, world, options), world};
  });
}

void espalier_c10d_group_free(Group* group) { delete group; }

int espalier_c10d_all_gather(Group* group, Tensor* out, Tensor* in, int64_t timeout_ms) {
  return guard([&] {
    pair(*out, *in, in->numel() * group->world);
    c10d::AllgatherOptions options;
    options.timeout = milliseconds(timeout_ms);
    finish([&] { return group->gloo->_allgather_base(*out, *in, options); }, timeout_ms);
  });
}

// Block `i` of `in` goes to rank `i`; block `i` of `out` comes from rank `i`.
int espalier_c10d_all_to_all(Group* group, Tensor* out, Tensor* in, int64_t timeout_ms) {
  return guard([&] {
    pair(*out, *in, in->numel());
    TORCH_CHECK(in->dim() == 1 && out->dim() == 1 && in->numel() % group->world == 0,
                "`in`: expected one dimension that divides by ", group->world, ", got ", in->sizes());
    c10d::AllToAllOptions options;
    options.timeout = milliseconds(timeout_ms);
    std::vector<int64_t> even;
    finish([&] { return group->gloo->alltoall_base(*out, *in, even, even, options); }, timeout_ms);
  });
}

// `reduction`: 0 sum, 1 largest, 2 smallest.
int espalier_c10d_all_reduce(Group* group, Tensor* tensor, int reduction, int64_t timeout_ms) {
  return guard([&] {
    dense(*tensor, "tensor");
    c10d::AllreduceOptions options;
    options.timeout = milliseconds(timeout_ms);
    switch (reduction) {
      case 0: options.reduceOp = c10d::ReduceOp::SUM; break;
      case 1: options.reduceOp = c10d::ReduceOp::MAX; break;
      case 2: options.reduceOp = c10d::ReduceOp::MIN; break;
      default: TORCH_CHECK(false, "unknown reduction ", reduction);
    }
    std::vector<Tensor> tensors{*tensor};
    finish([&] { return group->gloo->allreduce(tensors, options); }, timeout_ms);
  });
}

int espalier_c10d_broadcast(Group* group, Tensor* tensor, int root, int64_t timeout_ms) {
  return guard([&] {
    dense(*tensor, "tensor");
    TORCH_CHECK(root >= 0 && root < group->world, "expected a root below ", group->world, ", got ", root);
    c10d::BroadcastOptions options;
    options.timeout = milliseconds(timeout_ms);
    options.rootRank = root;
    std::vector<Tensor> tensors{*tensor};
    finish([&] { return group->gloo->broadcast(tensors, options); }, timeout_ms);
  });
}

}  // extern "C"
