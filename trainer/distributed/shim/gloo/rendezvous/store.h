// libtorch ships c10d's headers, but not those of Gloo, which they include. `ProcessGroupGloo.hpp` holds Gloo's types
// behind pointers only, so that declarations are enough: nothing here may be constructed or derived from by the shim.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout);
};
}  // namespace gloo::rendezvous
