#include "mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

namespace byteps {
namespace {

[[noreturn]] void fail() {
  throw std::system_error(errno, std::generic_category(), "cannot map shared memory");
}

}  // namespace

Mapping::Mapping(size_t bytes, int protection, int flags, int fd, off_t offset)
    : data_(mmap(nullptr, bytes, protection, flags, fd, offset)), bytes_(bytes) {
  if (data_ == MAP_FAILED) fail();
  madvise(data_, bytes_, MADV_DONTFORK);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

void map_over(std::byte* at, size_t bytes, int protection, int fd, off_t offset) {
  if (mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED) fail();
  madvise(at, bytes, MADV_DONTFORK);
}

}  // namespace byteps
