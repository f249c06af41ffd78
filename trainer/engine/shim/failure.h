// How entries of the shim fail: every exception is caught, its message kept for the thread that called.
#pragma once
#include <c10/util/Exception.h>

#include <string>

// The message of this thread's last failure.
std::string& espalier_failure();

// 0, or 1 with a message.
template <class F>
int espalier_guard(F f) {
  try {
    f();
    return 0;
  } catch (const c10::Error& e) {
    espalier_failure() = e.what_without_backtrace();
  } catch (const std::exception& e) {
    espalier_failure() = e.what();
  } catch (...) {
    espalier_failure() = "an unknown C++ exception";
  }
  return 1;
}
