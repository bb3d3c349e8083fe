// Native test of wire.h: what is encoded comes back, and nothing else is taken for a header.
#include "wire.h"

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "check.h"
#include "status.h"

namespace {

using namespace byteps;

std::optional<Header> decoded(const HeaderBytes& bytes) { return decode(bytes.data()); }

bool same(const Header& a, const Header& b) { return encode(a) == encode(b); }

Header push() {
  Header header;
  header.type = FrameType::push;
  header.epoch = 1;
  header.tensor = 0x01020304;
  header.partition = 2;
  header.round = 3;
  header.rank = 4;
  header.offset = 5 * kCellBytes;
  header.length = 6;
  header.priority = -7;
  header.flags = kFlagNoResult;
  return header;
}

Header header_of(FrameType type, uint16_t flags, uint32_t length, Status code = Status::pending) {
  Header header = push();
  header.type = type;
  header.flags = flags;
  header.length = length;
  if (length == 0) header.offset = 0;
  header.code = static_cast<uint16_t>(code);
  return header;
}

std::vector<Header> valid_headers() {
  std::vector<Header> all{
      push(),
      header_of(FrameType::push, kFlagEmpty, 0),
      header_of(FrameType::push, kFlagEmpty | kFlagNoResult, 0),
      header_of(FrameType::result, 0, kMaxPayloadBytes),
      header_of(FrameType::result, kFlagDone, 0),
      header_of(FrameType::parked, 0, 0),
      header_of(FrameType::parked, kFlagWanted, 0),
      header_of(FrameType::heartbeat, 0, 0),
      header_of(FrameType::heartbeat, kFlagIdle, 0),
  };
  for (const Status code : {Status::link_lost, Status::departed, Status::retracted, Status::closed}) {
    all.push_back(header_of(FrameType::failed, 0, 0, code));
  }
  for (const uint16_t code : {uint16_t{1}, kLocalSteps}) {
    all.push_back(header_of(FrameType::local, kFlagEmpty | kFlagNoResult, 0, static_cast<Status>(code)));
    all.back().offset = 100;
  }
  return all;
}

void check_round_trip() {
  for (const Header& header : valid_headers()) {
    const auto back = decoded(encode(header));
    CHECK(back && same(*back, header));
  }
  const auto back = decoded(encode(push()));
  CHECK(back->tensor == 0x01020304 && back->priority == -7 && back->offset == 5 * kCellBytes &&
        back->length == 6);
}

// Other versions of this program read these bytes.
void check_layout() {
  const HeaderBytes bytes = encode(push());
  const std::vector<int> start{0xE7, 0xB5, 1, 1, 1, 0, 0, 0, 4, 3, 2, 1};
  for (size_t i = 0; i < start.size(); ++i) CHECK_EQUAL(static_cast<int>(bytes[i]), start[i]);
  CHECK_EQUAL(static_cast<int>(bytes[32]), 0xF9);  // the priority's lowest byte
}

void check_rejections() {
  const std::vector<Header> wrong{
      header_of(FrameType::push, 0, 0),                     // no payload, yet not empty
      header_of(FrameType::push, 0, kMaxPayloadBytes + 1),  // longer than a chunk
      header_of(FrameType::push, kFlagEmpty, 1),            // empty, with payload
      header_of(FrameType::push, kFlagDone, 1),             // a flag of another type
      header_of(FrameType::push, 8, 1),                     // an unknown flag
      header_of(FrameType::push, 0, 1, Status::closed),     // a code where none belongs
      header_of(FrameType::result, kFlagDone, kCellBytes),  // done, with payload
      header_of(FrameType::result, kFlagEmpty, 0),
      header_of(FrameType::result, 0, 0),
      header_of(FrameType::parked, 0, 1),
      header_of(FrameType::parked, kFlagIdle, 0),
      header_of(FrameType::heartbeat, kFlagEmpty, 0),
      header_of(FrameType::heartbeat, 0, UINT32_MAX),
      header_of(FrameType::failed, 0, 0, Status::pending),  // would never end
      header_of(FrameType::failed, 0, 0, Status::ok),       // would pass for a result
      header_of(FrameType::failed, 0, 0, static_cast<Status>(6)),
      header_of(FrameType::failed, 0, 4, Status::departed),
      header_of(FrameType::local, 0, 0),  // of no step
      header_of(FrameType::local, 0, 0, static_cast<Status>(kLocalSteps + 1)),
      header_of(FrameType::local, 0, 4, static_cast<Status>(1)),
      header_of(FrameType::local, kFlagDone, 0, static_cast<Status>(1)),
  };
  for (const Header& header : wrong) CHECK(!decoded(encode(header)));
  for (const uint32_t offset : {1u, 4u, static_cast<uint32_t>(kCellBytes) - 1}) {
    Header header = push();
    header.offset = offset;
    CHECK(!decoded(encode(header)));
    header = header_of(FrameType::parked, 0, 0);
    header.offset = kCellBytes;
    CHECK(!decoded(encode(header)));
  }
  for (size_t i = 0; i < 4; ++i) {  // magic, version, type
    for (int value = 0; value < 256; ++value) {
      HeaderBytes bytes = encode(push());
      if (static_cast<int>(bytes[i]) == value) continue;
      bytes[i] = static_cast<std::byte>(value);
      CHECK(!decoded(bytes));  // a push with payload and `no result` is no valid header of another type
    }
  }
}

// Whatever is accepted means exactly what its bytes say.
void check_random_bytes() {
  std::mt19937 random(1);
  size_t accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    const auto& valid = valid_headers();
    HeaderBytes bytes = encode(valid[random() % valid.size()]);
    for (int flips = static_cast<int>(random() % 4); flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << random() % 8);
    }
    const auto header = decoded(bytes);
    if (!header) continue;
    ++accepted;
    CHECK(encode(*header) == bytes);
    CHECK(header->length <= kMaxPayloadBytes);
  }
  CHECK(accepted > 10'000 && accepted < 190'000);
}

}  // namespace

int main() {
  for (const auto check : {check_round_trip, check_layout, check_rejections, check_random_bytes}) check();
  return 0;
}
