// Frames over a link: FrameReader takes them apart without copying large payloads, Outbox sends many at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "link.h"
#include "wire.h"

namespace byteps {

// Where received frames go. All calls come from FrameReader::read.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A new frame. Returning false ends the connection: this peer does not speak the protocol.
  virtual bool on_header(const Header& header) = 0;
  // Where the payload goes from byte `done` on: at least one byte and at most what is left of the payload.
  virtual std::span<std::byte> destination(const Header& header, size_t done) = 0;
  // Bytes for the whole span last given out, where they lie: true if they were used there, and need not be
  // put into it. They may change while they are read, and are aligned to 8 bytes.
  virtual bool use(const Header&, size_t /*done*/, std::span<const std::byte>) { return false; }
  // The span last given out, which began at byte `done`, is full.
  virtual void on_filled(const Header& header, size_t done, size_t length) = 0;
  // The whole frame is here.
  virtual void on_frame(const Header& header) = 0;
};

class FrameReader {
 public:
  enum class Status { drained, more, closed, malformed };

  // Reads until the link is drained or about `limit` bytes were read (`more`), so that one peer starves no
  // other.
  Status read(Link& link, FrameSink& sink, size_t limit);

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  bool consume(FrameSink& sink);  // as far as the buffer goes; false: malformed
  bool start_frame(FrameSink& sink);
  bool advance(FrameSink& sink, size_t n);  // n payload bytes of the current destination are in place
  ssize_t fill(Link& link);
  bool used_in_place(Link& link, FrameSink& sink) const;
  bool end_span(FrameSink& sink);

  // Holds headers, and the payloads that follow them closely. Large payloads go straight to their
  // destination.
  std::array<std::byte, 4096> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  Header header_;
  bool in_payload_ = false;
  size_t done_ = 0;              // payload bytes in place
  size_t span_start_ = 0;        // where in the payload target_ began
  std::span<std::byte> target_;  // what is left of the current destination
  size_t span_length_ = 0;
  bool header_alone_ = false;  // read no further than the next header: its payload may be used in place
  uint64_t bytes_read_ = 0;
};

// The frames that wait to be written to one link, in order. Payloads are not copied: they must stay valid
// until the frame is written; `owner` is held until then.
class Outbox {
 public:
  static constexpr size_t kMaxPieces = kMaxChunkCells;

  void push(const Header& header, std::span<const iovec> payload = {}, std::shared_ptr<void> owner = nullptr);

  // Writes until nothing is left or the link takes no more. False: the peer is gone.
  bool flush(Link& link);
  // Lets go of the frames that the link has taken and no longer uses.
  void reclaim(const Link& link);

  bool empty() const { return frames_.size() == written_frames_; }
  size_t queued_bytes() const { return queued_bytes_; }
  uint64_t bytes_written() const { return bytes_written_; }
  void clear();

 private:
  struct Frame {
    HeaderBytes header;
    std::array<iovec, kMaxPieces> payload;
    size_t pieces = 0;
    size_t total = 0;
    std::shared_ptr<void> owner;
  };

  void written(size_t n);

  std::deque<Frame> frames_;  // first those that are written, and in use
  size_t written_frames_ = 0;
  size_t written_in_use_ = 0;  // bytes of those
  size_t front_done_ = 0;      // bytes of the first other frame that are written
  size_t queued_bytes_ = 0;
  uint64_t bytes_written_ = 0;
};

}  // namespace byteps
