#include "wire.h"

#include <bit>
#include <cstring>

#include "status.h"

namespace byteps {
namespace {

constexpr uint16_t kMagic = 0xB5E7;
constexpr uint8_t kVersion = 1;

// The wire is little-endian. Layout: magic 2, version 1, type 1, then the fields of Header in order.
template <typename T>
void put(std::byte*& at, T value) {
  static_assert(std::endian::native == std::endian::little, "big-endian hosts need byte swaps here");
  std::memcpy(at, &value, sizeof value);
  at += sizeof value;
}

template <typename T>
T take(const std::byte*& at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  at += sizeof value;
  return value;
}

bool carries_payload(const Header& h) {
  if (h.type == FrameType::push) return (h.flags & kFlagEmpty) == 0;
  return h.type == FrameType::result && (h.flags & kFlagDone) == 0;
}

// A reason that makes a round fail. A worker takes it as a `Status` without looking again.
bool is_failure(uint16_t code) {
  return code >= static_cast<uint16_t>(Status::link_lost) && code <= static_cast<uint16_t>(Status::closed);
}

bool is_code(const Header& h) {
  if (h.type == FrameType::failed) return is_failure(h.code);
  return h.type == FrameType::local ? h.code >= 1 && h.code <= kLocalSteps : h.code == 0;
}

bool well_formed(const Header& h) {
  if (!is_code(h)) return false;
  uint16_t allowed = 0;
  if (h.type == FrameType::push) allowed = kFlagEmpty | kFlagNoResult;
  if (h.type == FrameType::result) allowed = kFlagDone;
  if (h.type == FrameType::parked) allowed = kFlagWanted;
  if (h.type == FrameType::heartbeat) allowed = kFlagIdle;
  if (h.type == FrameType::local) allowed = kFlagEmpty | kFlagNoResult;
  if ((h.flags & ~allowed) != 0) return false;
  if (h.type == FrameType::local) return h.length == 0;
  if (!carries_payload(h)) return h.length == 0 && h.offset == 0;
  return h.length > 0 && h.length <= kMaxPayloadBytes && h.offset % kCellBytes == 0;
}

}  // namespace

HeaderBytes encode(const Header& h) {
  HeaderBytes bytes;
  std::byte* at = bytes.data();
  put(at, kMagic);
  put(at, kVersion);
  put(at, static_cast<uint8_t>(h.type));
  put(at, h.epoch);
  put(at, h.tensor);
  put(at, h.partition);
  put(at, h.round);
  put(at, h.rank);
  put(at, h.offset);
  put(at, h.length);
  put(at, h.priority);
  put(at, h.flags);
  put(at, h.code);
  return bytes;
}

std::optional<Header> decode(const std::byte* at) {
  if (take<uint16_t>(at) != kMagic || take<uint8_t>(at) != kVersion) return std::nullopt;
  const uint8_t type = take<uint8_t>(at);
  if (type < static_cast<uint8_t>(FrameType::push) || type > static_cast<uint8_t>(FrameType::local)) {
    return std::nullopt;
  }
  Header h;
  h.type = static_cast<FrameType>(type);
  h.epoch = take<uint32_t>(at);
  h.tensor = take<uint32_t>(at);
  h.partition = take<uint32_t>(at);
  h.round = take<uint32_t>(at);
  h.rank = take<uint32_t>(at);
  h.offset = take<uint32_t>(at);
  h.length = take<uint32_t>(at);
  h.priority = take<int32_t>(at);
  h.flags = take<uint16_t>(at);
  h.code = take<uint16_t>(at);
  if (!well_formed(h)) return std::nullopt;
  return h;
}

}  // namespace byteps
