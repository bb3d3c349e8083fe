// Fuzz target: headers, and frames from an outbox to a reader. However the link and the destinations cut
// them, they arrive as they were sent.
#include <deque>

#include "frames.h"
#include "script.h"

namespace byteps {
namespace {

// Payloads are cut from here: numbers that tell where a byte comes from.
const std::byte* pattern(size_t start) {
  static const auto bytes = [] {
    std::vector<std::byte> made(kMaxPayloadBytes + 256 * 8);
    for (size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(i * 7 + i / 256);
    return made;
  }();
  return &bytes[start];
}

class WireRun final : public FrameSink {
 public:
  explicit WireRun(Script& script) : script_(script) {}

  void act(uint8_t what) {
    if (status_ > FrameReader::Status::more) return;
    Header header{static_cast<FrameType>(1 + what % 5), 3, 1, 0, 1, 0, 0, 24};
    Script::mend(header);
    for (uint32_t i = script_.below(4); i > 0; --i) script_.disturb(header);
    script_.is_broken() ? wire_->feed(script_, header) : push(header);
    wire_->allow(script_);
  }

  void turn() {
    if (status_ <= FrameReader::Status::more) status_ = transmit();
  }

  void end() {
    wire_->hung_up = script_.one_in(2);
    wire_->may_send = wire_->may_receive = SIZE_MAX;
    do {
      turn();
    } while (status_ == FrameReader::Status::more ||
             (status_ == FrameReader::Status::drained && !outbox_.empty()));
    if (!script_.is_broken() && !refused_ && !wire_->hung_up) {
      CHECK(sent_.empty() && status_ == FrameReader::Status::drained);
    }
    outbox_.clear();
    CHECK(outbox_.empty() && outbox_.queued_bytes() == 0);
  }

 private:
  struct Sent {
    Header header;
    size_t start;
  };

  void push(const Header& header) {
    script_.frame(header);
    const size_t start = script_.byte() * size_t{8};
    std::vector<iovec> pieces;
    for (size_t done = 0; done < header.length;) {
      const bool last = pieces.size() + 1 == Outbox::kMaxPieces;
      const size_t n = last ? header.length - done : std::min(script_.limit() | 1, header.length - done);
      pieces.push_back({const_cast<std::byte*>(pattern(start + done)), n});
      done += n;
    }
    outbox_.push(header, pieces);
    sent_.push_back({header, start});
  }

  FrameReader::Status transmit() {
    if (!outbox_.flush(link_)) return FrameReader::Status::closed;
    wire_->forget_taken();
    wire_->inbound.insert(wire_->inbound.end(), wire_->outbound.begin(), wire_->outbound.end());
    wire_->outbound.clear();
    return reader_.read(link_, *this, script_.limit());
  }

  bool on_header(const Header& header) override {
    refused_ = script_.one_in(64);
    memory_ =
        std::make_unique<std::byte[]>(header.length);  // of the exact size, so that a byte too far shows
    filled_ = 0;
    CHECK(script_.is_broken() || encode(header) == encode(sent_.front().header));
    return !refused_;
  }
  std::span<std::byte> destination(const Header& header, size_t done) override {
    CHECK(done == filled_ && done < header.length);
    refused_ = script_.one_in(64);
    if (refused_) return {};
    return {&memory_[done], std::clamp<size_t>(script_.limit(), 1, header.length - done)};
  }
  void on_filled(const Header&, size_t done, size_t length) override {
    CHECK(done == filled_);
    filled_ += length;
  }
  void on_frame(const Header& header) override {
    CHECK(filled_ == header.length);
    if (script_.is_broken()) return;
    CHECK(std::memcmp(memory_.get(), pattern(sent_.front().start), header.length) == 0);
    sent_.pop_front();
  }

  Script& script_;
  const std::shared_ptr<Wire> wire_ = std::make_shared<Wire>();
  WireLink link_{wire_};
  Outbox outbox_;
  FrameReader reader_;
  std::deque<Sent> sent_;
  std::unique_ptr<std::byte[]> memory_;
  size_t filled_ = 0;
  bool refused_ = false;
  FrameReader::Status status_ = FrameReader::Status::drained;
};

}  // namespace
}  // namespace byteps

extern "C" {
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return byteps::play<byteps::WireRun>(data, size);
}
}
