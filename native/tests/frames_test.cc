// Native test of frames.h: random frames in random pieces arrive intact, and malformed bytes end the
// connection.
#include "frames.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "check.h"

namespace {

using namespace byteps;

// A pipe that moves a random number of bytes per call, often none.
class FakeLink final : public Link {
 public:
  explicit FakeLink(uint32_t seed) : random_(seed) {}
  ssize_t send(const iovec* parts, int count) override {
    if (closed) return kClosed;
    size_t room = allowance();
    size_t moved = 0;
    for (int i = 0; i < count && room > 0; ++i) {
      const size_t n = std::min(room, parts[i].iov_len);
      const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      bytes.insert(bytes.end(), from, from + n);
      room -= n;
      moved += n;
    }
    return static_cast<ssize_t>(moved);
  }
  ssize_t receive(const iovec* parts, int count) override {
    if (closed && taken_ == bytes.size()) return kClosed;
    size_t left = std::min(allowance(), bytes.size() - taken_);
    const size_t before = taken_;
    for (int i = 0; i < count && left > 0; ++i) {
      const size_t n = std::min(left, parts[i].iov_len);
      std::memcpy(parts[i].iov_base, bytes.data() + taken_, n);
      taken_ += n;
      left -= n;
    }
    return static_cast<ssize_t>(taken_ - before);
  }
  int read_fd() const override { return -1; }
  int write_fd() const override { return -1; }
  uint32_t write_event() const override { return 0; }
  size_t unsent() const override { return 0; }
  Queued queued() const override { return {}; }
  void set_low_water(size_t) override {}
  void abandon() override {}

  std::vector<std::byte> bytes;
  bool closed = false;

 private:
  size_t allowance() {
    const size_t scale[] = {0, 3, 50, 5000, 2'000'000};
    const size_t most = scale[random_() % 5];
    return most == 0 ? 0 : random_() % most + 1;
  }
  std::mt19937 random_;
  size_t taken_ = 0;
};

struct Message {
  Header header;
  std::vector<std::byte> payload;
};

Message random_message(std::mt19937& random) {
  Message message;
  message.header.tensor = random();
  if (random() % 3 == 0) return message;  // a heartbeat
  message.header.type = FrameType::push;
  const size_t limits[] = {1, 60, 4096, 20'000, 200'000, kMaxPayloadBytes};
  message.payload.resize(random() % limits[random() % 6] + 1);
  message.header.length = static_cast<uint32_t>(message.payload.size());
  uint32_t value = random();
  for (std::byte& byte : message.payload) byte = static_cast<std::byte>((value += 0x9E3779B9) >> 24);
  return message;
}

// Takes every payload in spans of random length, and checks that the reader keeps to what it was told.
class Sink final : public FrameSink {
 public:
  explicit Sink(uint32_t seed) : random_(seed) {}
  bool on_header(const Header& header) override {
    current_ = {header, std::vector<std::byte>(header.length)};
    expected_done_ = 0;
    return header.tensor != refused_tensor;
  }
  std::span<std::byte> destination(const Header& header, size_t done) override {
    CHECK_EQUAL(done, expected_done_);
    if (bad_span) return std::span(current_.payload.data(), *bad_span);
    span_ = random_() % 2 == 0 ? header.length - done : random_() % (header.length - done) + 1;
    return std::span(current_.payload).subspan(done, span_);
  }
  void on_filled(const Header&, size_t done, size_t length) override {
    CHECK(done == expected_done_ && length == span_);
    expected_done_ += length;
  }
  void on_frame(const Header& header) override {
    CHECK_EQUAL(expected_done_, header.length);
    received.push_back(std::move(current_));
  }

  std::vector<Message> received;
  std::optional<uint32_t> refused_tensor;
  std::optional<size_t> bad_span;

 private:
  std::mt19937 random_;
  Message current_;
  size_t expected_done_ = 0;
  size_t span_ = 0;
};

void push(Outbox& outbox, Message& message, std::mt19937& random, std::shared_ptr<void> owner = nullptr) {
  std::vector<iovec> parts;
  size_t at = 0;
  while (at < message.payload.size()) {
    const size_t left = message.payload.size() - at;
    const size_t n = parts.size() + 1 == Outbox::kMaxPieces ? left : random() % left + 1;
    parts.push_back({message.payload.data() + at, n});
    at += n;
  }
  outbox.push(message.header, parts, std::move(owner));
}

void check_round_trip(uint32_t seed) {
  std::mt19937 random(seed);
  FakeLink link(seed);
  Outbox outbox;
  FrameReader reader;
  Sink sink(seed);
  std::vector<Message> sent;
  for (int i = 0; i < 40; ++i) sent.push_back(random_message(random));
  const auto owner = std::make_shared<int>();
  size_t queued = 0, total = 0;
  while (sink.received.size() < sent.size()) {
    for (size_t more = random() % 4; more > 0 && queued < sent.size(); --more) {
      total += kHeaderBytes + sent[queued].payload.size();
      push(outbox, sent[queued++], random, owner);
    }
    CHECK(outbox.flush(link));
    CHECK_EQUAL(outbox.queued_bytes(), total - link.bytes.size());
    CHECK_EQUAL(outbox.bytes_written(), link.bytes.size());
    const auto status = reader.read(link, sink, random() % 100'000 + 1);
    CHECK(status == FrameReader::Status::drained || status == FrameReader::Status::more);
  }
  CHECK(outbox.empty() && owner.use_count() == 1 && reader.bytes_read() == total);
  for (size_t i = 0; i < sent.size(); ++i) {
    CHECK(encode(sent[i].header) == encode(sink.received[i].header));
    CHECK(sent[i].payload == sink.received[i].payload);
  }
  link.closed = true;
  CHECK(!outbox.flush(link) || outbox.empty());
  CHECK(reader.read(link, sink, 1) == FrameReader::Status::closed);
}

FrameReader::Status read_to_the_end(FakeLink& link, Sink& sink) {
  FrameReader reader;
  link.closed = true;
  while (true) {
    const auto status = reader.read(link, sink, 1'000'000);
    if (status == FrameReader::Status::closed || status == FrameReader::Status::malformed) return status;
  }
}

// One good frame and then one changed byte of the next one's header; or what the sink refuses.
void check_malformed(uint32_t seed) {
  std::mt19937 random(seed);
  Message message;
  while (message.payload.empty()) message = random_message(random);
  const HeaderBytes header = encode(message.header);
  const auto run = [&](size_t length, size_t changed, const auto& prepare) {
    FakeLink link(seed);
    for (const std::byte byte : header) link.bytes.push_back(byte);
    for (const std::byte byte : message.payload) link.bytes.push_back(byte);
    for (size_t i = 0; i < length; ++i)
      link.bytes.push_back(header[i] ^ std::byte{i == changed ? uint8_t{64} : uint8_t{0}});
    Sink sink(seed);
    prepare(sink);
    const auto status = read_to_the_end(link, sink);
    return std::pair(status, sink.received.size());
  };
  const auto as_is = [](Sink&) {};
  using Status = FrameReader::Status;
  CHECK(run(kHeaderBytes, random() % 4, as_is) == std::pair(Status::malformed, size_t{1}));
  CHECK(run(kHeaderBytes, kHeaderBytes, as_is) == std::pair(Status::closed, size_t{1}));
  CHECK(run(random() % kHeaderBytes, kHeaderBytes, as_is) == std::pair(Status::closed, size_t{1}));
  const auto refusing = [&](Sink& sink) { sink.refused_tensor = message.header.tensor; };
  CHECK(run(0, 0, refusing) == std::pair(Status::malformed, size_t{0}));
  CHECK(run(0, 0, [](Sink& sink) { sink.bad_span = 0; }) == std::pair(Status::malformed, size_t{0}));
  const auto too_long = [&](Sink& sink) { sink.bad_span = message.payload.size() + 1; };
  CHECK(run(0, 0, too_long) == std::pair(Status::malformed, size_t{0}));
}

void check_owners() {
  std::mt19937 random(1);
  FakeLink link(1);
  Outbox outbox;
  Message first = random_message(random), second = random_message(random);
  const auto one = std::make_shared<int>(), two = std::make_shared<int>();
  push(outbox, first, random, one);
  push(outbox, second, random, two);
  const size_t first_bytes = kHeaderBytes + first.payload.size();
  while (!outbox.empty()) {
    CHECK_EQUAL(one.use_count(), link.bytes.size() < first_bytes ? 2 : 1);
    CHECK(outbox.flush(link));
  }
  CHECK_EQUAL(two.use_count(), 1);
  push(outbox, first, random, one);
  outbox.clear();
  CHECK(one.use_count() == 1 && outbox.empty() && outbox.queued_bytes() == 0);
  link.closed = true;
  push(outbox, first, random);
  CHECK(!outbox.flush(link));
}

}  // namespace

int main() {
  for (uint32_t seed = 0; seed < 25; ++seed) check_round_trip(seed);
  for (uint32_t seed = 0; seed < 100; ++seed) check_malformed(seed);
  check_owners();
  return 0;
}
