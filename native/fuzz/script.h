// What the fuzz targets share: fuzz bytes read as decisions, frames that are right but for what a decision
// changed, links that move bytes only as far as a decision lets them, and a tally. There are no threads and
// no sockets, and hardly a clock to wait for: the same bytes do the same again.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "../tests/check.h"
#include "lane.h"
#include "status.h"

namespace byteps {

// Printed when the process ends; libFuzzer's entry point has no other place for it.
struct Tally {
  ~Tally() {
    std::printf("tally: %llu inputs, %llu passed the header check, %llu frames, %llu passed\n", inputs,
                passed_inputs, frames, passed_frames);
  }
  unsigned long long inputs = 0, passed_inputs = 0, frames = 0, passed_frames = 0;
};

inline Tally& tally() {
  static const auto only = std::make_unique<Tally>();
  return *only;
}

// An input, read as decisions. After its end every decision is 0. It has passed the header check if it has
// frames and none was refused; only one input in eight may break the header of a frame. One in 32 has
// payloads of cells and chunks: they take the time.
class Script {
 public:
  Script(const uint8_t* data, size_t size)
      : at_(data), end_(data + size), broken_(byte() % 8 == 7), large_(one_in(32)) {
    ++tally().inputs;
  }
  ~Script() { tally().passed_inputs += frames_ > 0 && passed_ == frames_; }

  bool more() const { return at_ != end_ && payload_bytes_ < kMostPayloadBytes; }
  bool is_broken() const { return broken_; }
  bool is_large() const { return large_; }
  uint8_t byte() { return at_ == end_ ? uint8_t{0} : *at_++; }
  uint32_t below(uint32_t n) { return byte() % n; }
  bool one_in(uint32_t n) { return byte() % n == 1; }

  // A length or a limit: mostly everything, else near the sizes that matter.
  size_t limit() {
    constexpr size_t kLimits[]{
        SIZE_MAX, SIZE_MAX, SIZE_MAX, 4096, 1, kHeaderBytes - 1, kHeaderBytes, 2 * kHeaderBytes + 7,
        SIZE_MAX, SIZE_MAX, 0,        5000, 3, kCellBytes - 1,   kCellBytes,   kCellBytes + kHeaderBytes};
    return kLimits[below(16)];
  }

  HeaderBytes frame(const Header& header) {
    HeaderBytes bytes = encode(header);
    if (broken_ && one_in(4)) bytes[below(kHeaderBytes)] ^= std::byte{byte()};
    payload_bytes_ += header.length;
    ++frames_;
    ++tally().frames;
    if (const auto decoded = decode(bytes.data())) {
      CHECK(encode(*decoded) == bytes);
      ++passed_;
      ++tally().passed_frames;
    }
    return bytes;
  }

  // Changes one field. The result is still well-formed, unless this input may break headers.
  void disturb(Header& h) {
    const auto value = static_cast<int8_t>(byte());
    constexpr uint32_t kLengths[]{4,
                                  8,
                                  24,
                                  1,
                                  100,
                                  4096,
                                  5000,
                                  20'000,
                                  8,
                                  4,
                                  kCellBytes - 4,
                                  kCellBytes,
                                  2 * kCellBytes,
                                  kMaxPayloadBytes,
                                  1,
                                  24};
    const uint32_t field = below(11);
    if (field == 0) h.type = static_cast<FrameType>(1 + static_cast<uint8_t>(value) % 5);
    if (field == 1) h.epoch += static_cast<uint32_t>(value);
    if (field == 2) h.tensor += static_cast<uint32_t>(value);
    if (field == 3) h.partition += static_cast<uint32_t>(value);
    if (field == 4) h.round += static_cast<uint32_t>(value % 3);
    if (field == 5) h.rank += static_cast<uint32_t>(value);
    if (field == 6) h.offset = static_cast<uint32_t>(value % 8) * kCellBytes;
    if (field == 7) h.length = kLengths[static_cast<uint8_t>(value) % 8 + (large_ ? 8 : 0)];
    if (field == 8) h.priority = value * (INT32_MAX / 128);
    if (field == 9) h.flags ^= static_cast<uint16_t>(1 << (static_cast<uint8_t>(value) % 3));
    if (field == 10) h.code = static_cast<uint16_t>(value);
    if (!broken_) mend(h);
  }

  static void mend(Header& h) {
    const bool push = h.type == FrameType::push, result = h.type == FrameType::result;
    h.code = h.type == FrameType::failed ? static_cast<uint16_t>(2 + h.code % 4) : uint16_t{0};
    const bool heartbeat = h.type == FrameType::heartbeat, parked = h.type == FrameType::parked;
    h.flags &= push ? kFlagEmpty | kFlagNoResult : result ? kFlagDone : heartbeat ? kFlagIdle : kFlagWanted;
    if (!push && !result && !heartbeat && !parked) h.flags = 0;
    const bool carries = (push && (h.flags & kFlagEmpty) == 0) || (result && (h.flags & kFlagDone) == 0);
    if (carries && h.length == 0) h.length = 8;
    if (!carries) h.length = h.offset = 0;
    h.offset -= h.offset % kCellBytes;
  }

 private:
  static constexpr uint64_t kMostPayloadBytes = 1 << 19;  // of one input: enough for all that can happen

  const uint8_t* at_;
  const uint8_t* const end_;
  const bool broken_;
  const bool large_;
  uint64_t frames_ = 0, passed_ = 0, payload_bytes_ = 0;
};

inline Lane::Options lane_options(Script& script) {
  return {static_cast<Policy>(script.below(3)),
          script.one_in(4) ? 100 : UINT64_MAX,
          script.one_in(4) ? 0.0 : 1000.0,
          3,
          0,
          script.one_in(4) ? 8u : 0u};
}

struct Heard {
  Header header;
  size_t payload_hash;
};

// The far end of a link: what it sends, what it has heard, and how far bytes may move.
struct Wire {
  void feed(Script& script, const Header& header) {
    const HeaderBytes bytes = script.frame(header);
    correct = correct && !script.is_broken();
    forget_taken();
    inbound.insert(inbound.end(), bytes.begin(), bytes.end());
    const size_t payload = std::min<size_t>(header.length, kMaxPayloadBytes);
    inbound.insert(inbound.end(), payload, std::byte{script.byte()});
  }

  void forget_taken() {
    if (taken < inbound.size()) return;
    inbound.clear();
    taken = 0;
  }

  // Everything heard since the last time; what the lane sends has to be well-formed.
  std::vector<Heard> listen() {
    std::vector<Heard> frames;
    while (outbound.size() - heard >= kHeaderBytes) {
      const auto header = decode(&outbound[heard]);
      CHECK(header);
      if (outbound.size() - heard < kHeaderBytes + header->length) break;
      heard += kHeaderBytes + header->length;
      const auto* end = reinterpret_cast<const char*>(outbound.data() + heard);
      frames.push_back({*header, std::hash<std::string_view>()({end - header->length, header->length})});
    }
    if (heard == outbound.size()) {
      outbound.clear();
      heard = 0;
    }
    return frames;
  }

  void allow(Script& script) {
    may_receive = script.limit();
    may_send = script.limit();
  }

  std::vector<std::byte> inbound, outbound;
  size_t taken = 0, heard = 0;
  size_t may_receive = SIZE_MAX, may_send = SIZE_MAX;
  bool hung_up = false;  // the far end did
  bool closed = false;   // the lane did
  bool correct = true;   // so far it has sent only what a correct peer sends
};

class WireLink final : public Link {
 public:
  explicit WireLink(std::shared_ptr<Wire> wire)
      : wire_(std::move(wire)), fd_(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~WireLink() override {
    wire_->closed = true;
    close(fd_);
  }

  ssize_t send(const iovec* parts, int count) override {
    if (wire_->hung_up) return kClosed;
    return move(parts, count, wire_->may_send, [this](std::byte* from, size_t n) {
      wire_->outbound.insert(wire_->outbound.end(), from, from + n);
      return n;
    });
  }
  ssize_t receive(const iovec* parts, int count) override {
    Wire& wire = *wire_;
    if (wire.hung_up && wire.taken == wire.inbound.size()) return kClosed;
    return move(parts, count, wire.may_receive, [&wire](std::byte* to, size_t n) {
      n = std::min(n, wire.inbound.size() - wire.taken);
      if (n > 0) std::memcpy(to, &wire.inbound[wire.taken], n);
      wire.taken += n;
      return n;
    });
  }
  std::span<const std::byte> peek() override {
    const size_t there = std::min(wire_->inbound.size() - wire_->taken, wire_->may_receive);
    return {wire_->inbound.data() + wire_->taken, there};
  }
  void skip(size_t bytes) override {
    wire_->taken += bytes;
    wire_->may_receive -= bytes;
  }
  int read_fd() const override { return fd_; }  // always ready, both ways
  int write_fd() const override { return fd_; }
  uint32_t write_event() const override { return EPOLLOUT; }
  size_t unsent() const override { return 0; }
  Queued queued() const override { return {}; }
  void set_low_water(size_t) override {}
  void abandon() override {}

 private:
  template <typename Copy>
  static ssize_t move(const iovec* parts, int count, size_t& allowed, const Copy& copy) {
    size_t moved = 0;
    for (int i = 0; i < count && allowed > 0; ++i) {
      const size_t n = copy(static_cast<std::byte*>(parts[i].iov_base), std::min(parts[i].iov_len, allowed));
      allowed -= n;
      moved += n;
      if (n < parts[i].iov_len) break;
    }
    return static_cast<ssize_t>(moved);
  }

  const std::shared_ptr<Wire> wire_;
  const int fd_;
};

inline std::shared_ptr<Wire> connect(const std::function<void(std::unique_ptr<Link>)>& adopt) {
  auto wire = std::make_shared<Wire>();
  adopt(std::make_unique<WireLink>(wire));
  return wire;
}

// One input: one act for each decision, and mostly a turn of what is fuzzed after it.
template <typename Run>
int play(const uint8_t* data, size_t size) {
  Script script(data, size);
  Run run(script);
  while (script.more()) {
    const uint8_t what = script.byte();
    run.act(what);
    if (what < 160) run.turn();
  }
  run.end();
  return 0;
}

}  // namespace byteps

// Every report comes soon enough with a small quarantine, and fresh pages for each input would cost much.
extern "C" {
inline __attribute__((used)) const char* __asan_default_options() {
  return "quarantine_size_mb=16:malloc_context_size=4:allocator_release_to_os_interval_ms=-1";
}
}
