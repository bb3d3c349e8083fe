// The other end of a worker's or server's link, for the native tests: it says whatever the test wants.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "check.h"
#include "frames.h"
#include "job.h"

namespace byteps {

class RawPeer final : public FrameSink {
 public:
  explicit RawPeer(std::unique_ptr<Link> link) : link_(std::move(link)) {}

  void send_bytes(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const ssize_t n = link_->send(&part, 1);
      if (n == Link::kClosed) return;  // the test will see it when it reads
      bytes = bytes.subspan(static_cast<size_t>(n));
      if (n == 0) await(link_->write_fd(), link_->write_event());
    }
  }
  void send(const Header& header, float value = 1) {
    send_bytes(encode(header));
    const std::vector<float> payload(header.length / sizeof(float), value);
    send_bytes(std::as_bytes(std::span(payload)));
  }

  // The next frame that is no heartbeat; nothing once the other end has hung up.
  std::optional<Header> next() {
    while (received_.empty()) {
      if (!read()) return std::nullopt;
    }
    const Header header = received_.front();
    received_.erase(received_.begin());
    return header;
  }
  // Whether something comes within a time.
  bool has_more(int timeout_ms) {
    pollfd entry{link_->read_fd(), POLLIN, 0};
    return !received_.empty() || poll(&entry, 1, timeout_ms) == 1;
  }
  void await_heartbeats(uint32_t more) {
    for (const uint32_t enough = heartbeats_ + more; heartbeats_ < enough;) CHECK(read());
  }
  std::optional<Header> next_result() {
    auto header = next();
    while (header && header->type == FrameType::parked) header = next();
    CHECK(header && header->type == FrameType::result);
    return header;
  }
  bool is_hung_up_on() {
    while (next()) {
    }
    return true;
  }
  float first_value() const { return payload_[0]; }

 private:
  // Waits for something to read; false once the other end has hung up.
  bool read() {
    const auto status = reader_.read(*link_, *this, 1);
    CHECK(status != FrameReader::Status::malformed);
    if (status == FrameReader::Status::drained) await(link_->read_fd(), POLLIN);
    return status != FrameReader::Status::closed;
  }
  static void await(int fd, uint32_t event) {
    pollfd entry{fd, static_cast<short>(event), 0};
    CHECK(poll(&entry, 1, static_cast<int>(kPatienceS * 1000)) == 1);
  }
  bool on_header(const Header&) override { return true; }
  std::span<std::byte> destination(const Header& header, size_t done) override {
    return std::as_writable_bytes(std::span(payload_)).subspan(done, header.length - done);
  }
  void on_filled(const Header&, size_t, size_t) override {}
  void on_frame(const Header& header) override {
    if (header.type == FrameType::heartbeat) {
      ++heartbeats_;
    } else {
      received_.push_back(header);
    }
  }

  std::unique_ptr<Link> link_;
  FrameReader reader_;
  std::vector<float> payload_ = std::vector<float>(kMaxPayloadBytes / sizeof(float));
  std::vector<Header> received_;
  uint32_t heartbeats_ = 0;
};

}  // namespace byteps
