// memcpy for much that is not read soon: it goes past the caches. What is written over need not be read
// first, and what is in the caches stays there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace byteps {

inline void stream_copy(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64, kPart = sizeof(__m128i);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; bytes - at >= kLine; at += kLine) {
    for (size_t i = at; i < at + kLine; i += kPart)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();  // before anybody is told that it is there
  std::memcpy(to + at, from + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace byteps
