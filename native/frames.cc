#include "frames.h"

#include <algorithm>
#include <cstring>

namespace byteps {
namespace {

// Reading beyond a large payload would make the start of the next one go through the buffer: an extra copy.
// So only the next header is read along with it; behind a small payload, as many small frames as the buffer
// holds.
constexpr size_t kSmallPayloadBytes = 16 * 1024;

}  // namespace

FrameReader::Status FrameReader::read(Link& link, FrameSink& sink, size_t limit) {
  size_t taken = 0;
  while (taken < limit) {
    if (used_in_place(link, sink)) {
      taken += span_length_;
      bytes_read_ += span_length_;
      link.skip(span_length_);
      done_ += span_length_;
      header_alone_ = true;
      if (!end_span(sink)) return Status::malformed;
      continue;
    }
    const ssize_t n = fill(link);
    if (n == Link::kClosed) return Status::closed;
    if (n == 0) return Status::drained;
    taken += static_cast<size_t>(n);
    bytes_read_ += static_cast<uint64_t>(n);
    size_t direct = 0;
    if (!target_.empty()) {
      direct = std::min(static_cast<size_t>(n), target_.size());
      if (!advance(sink, direct)) return Status::malformed;
    }
    end_ += static_cast<size_t>(n) - direct;
    if (!consume(sink)) return Status::malformed;
  }
  return Status::more;
}

// Nothing is in the buffer, and the sink has used the bytes for its whole destination in the link's memory.
bool FrameReader::used_in_place(Link& link, FrameSink& sink) const {
  if (!in_payload_ || begin_ != end_ || target_.size() != span_length_) return false;
  const std::span<const std::byte> bytes = link.peek();
  return bytes.size() >= span_length_ && reinterpret_cast<uintptr_t>(bytes.data()) % 8 == 0 &&
         sink.use(header_, span_start_, bytes.first(span_length_));
}

ssize_t FrameReader::fill(Link& link) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  std::array<iovec, 2> parts;
  int count = 0;
  if (!target_.empty()) parts[static_cast<size_t>(count++)] = {target_.data(), target_.size()};
  const size_t left = in_payload_ ? header_.length - done_ : 0;
  size_t room = buffer_.size() - end_;
  if (left > target_.size())
    room = 0;  // more destinations follow in this payload
  else if (left > kSmallPayloadBytes || header_alone_)
    room = std::min(room, kHeaderBytes);
  header_alone_ = false;
  if (room > 0) parts[static_cast<size_t>(count++)] = {buffer_.data() + end_, room};
  return link.receive(parts.data(), count);
}

bool FrameReader::consume(FrameSink& sink) {
  while (true) {
    if (in_payload_) {
      if (begin_ == end_) return true;
      const size_t n = std::min(end_ - begin_, target_.size());
      std::memcpy(target_.data(), buffer_.data() + begin_, n);
      begin_ += n;
      if (!advance(sink, n)) return false;
    } else {
      if (end_ - begin_ < kHeaderBytes) return true;
      if (!start_frame(sink)) return false;
    }
  }
}

bool FrameReader::start_frame(FrameSink& sink) {
  const auto header = decode(buffer_.data() + begin_);
  begin_ += kHeaderBytes;
  if (!header || !sink.on_header(*header)) return false;
  header_ = *header;
  done_ = 0;
  in_payload_ = header_.length > 0;
  if (!in_payload_) {
    sink.on_frame(header_);
    return true;
  }
  target_ = sink.destination(header_, 0);
  span_start_ = 0;
  span_length_ = target_.size();
  return !target_.empty() && target_.size() <= header_.length;
}

bool FrameReader::advance(FrameSink& sink, size_t n) {
  target_ = target_.subspan(n);
  done_ += n;
  if (!target_.empty()) return true;
  sink.on_filled(header_, span_start_, span_length_);
  return end_span(sink);
}

// The current destination has all its bytes.
bool FrameReader::end_span(FrameSink& sink) {
  if (done_ == header_.length) {
    target_ = {};
    in_payload_ = false;
    sink.on_frame(header_);
    return true;
  }
  target_ = sink.destination(header_, done_);
  span_start_ = done_;
  span_length_ = target_.size();
  return !target_.empty() && target_.size() <= header_.length - done_;
}

void Outbox::push(const Header& header, std::span<const iovec> payload, std::shared_ptr<void> owner) {
  Frame& frame = frames_.emplace_back();
  frame.header = encode(header);
  frame.total = kHeaderBytes;
  for (const iovec& piece : payload) {
    frame.payload[frame.pieces++] = piece;
    frame.total += piece.iov_len;
  }
  frame.owner = std::move(owner);
  queued_bytes_ += frame.total;
}

bool Outbox::flush(Link& link) {
  constexpr size_t kMaxParts = 128;
  std::array<iovec, kMaxParts> parts;
  while (!empty()) {
    size_t count = 0;
    size_t skip = front_done_;
    auto add = [&](void* data, size_t length) {
      const size_t cut = std::min(skip, length);
      skip -= cut;
      if (length > cut) parts[count++] = {static_cast<std::byte*>(data) + cut, length - cut};
    };
    size_t offered = 0;
    for (size_t next = written_frames_; next < frames_.size(); ++next) {
      Frame& frame = frames_[next];
      if (count + 1 + frame.pieces > kMaxParts) break;
      add(frame.header.data(), kHeaderBytes);
      for (size_t i = 0; i < frame.pieces; ++i) add(frame.payload[i].iov_base, frame.payload[i].iov_len);
      offered += frame.total;
    }
    offered -= front_done_;
    const ssize_t n = link.send(parts.data(), static_cast<int>(count));
    if (n == Link::kClosed) return false;
    written(static_cast<size_t>(n));
    reclaim(link);
    if (static_cast<size_t>(n) < offered) return true;
  }
  return true;
}

void Outbox::written(size_t n) {
  bytes_written_ += n;
  queued_bytes_ -= n;
  front_done_ += n;
  while (!empty() && front_done_ >= frames_[written_frames_].total) {
    const size_t total = frames_[written_frames_++].total;
    front_done_ -= total;
    written_in_use_ += total;
  }
}

void Outbox::reclaim(const Link& link) {
  const size_t in_use = written_frames_ > 0 ? link.in_use() : 0;
  while (written_frames_ > 0 && written_in_use_ - frames_.front().total + front_done_ >= in_use) {
    written_in_use_ -= frames_.front().total;
    --written_frames_;
    frames_.pop_front();
  }
}

void Outbox::clear() {
  frames_.clear();
  written_frames_ = written_in_use_ = 0;
  front_done_ = 0;
  queued_bytes_ = 0;
}

}  // namespace byteps
