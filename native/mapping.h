// Memory that is mapped as long as an object lives, and not in forked children, which have no use for it.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace byteps {

// Throws std::system_error, as the function below does.
class Mapping {
 public:
  Mapping(size_t bytes, int protection, int flags, int fd, off_t offset);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* const data_;
  const size_t bytes_;
};

// Maps part of a shared file where a Mapping is, which unmaps it.
void map_over(std::byte* at, size_t bytes, int protection, int fd, off_t offset);

}  // namespace byteps
