#include "node.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#ifndef MADV_COLLAPSE  // Linux 6.1
#define MADV_COLLAPSE 25
#endif

namespace byteps {
namespace {

constexpr size_t kHugePageBytes = 2 * 1024 * 1024;

std::byte* aligned(std::byte* data) {
  const size_t beyond = reinterpret_cast<uintptr_t>(data) % kHugePageBytes;
  return beyond == 0 ? data : data + (kHugePageBytes - beyond);
}

}  // namespace

bool NodePlan::has(uint32_t place) const {
  return std::find(places.begin(), places.end(), place) != places.end();
}

bool NodePlan::is_for(uint32_t rank) const {
  return members.empty() || std::find(members.begin(), members.end(), rank) != members.end();
}

Segment::Segment(int fd, size_t bytes)
    : bytes_(bytes),
      room_(bytes + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
      data_(aligned(room_.data())) {
  struct stat status{};
  // A neighbour's file: were it too short, using it would end this process.
  if (fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_size) < bytes)
    throw std::runtime_error("a segment of the node is shorter than " + std::to_string(bytes) + " bytes");
  map_over(data_, bytes, PROT_READ | PROT_WRITE, fd, 0);
}

void Segment::use_huge_pages() const {
  madvise(data_, bytes_ / kHugePageBytes * kHugePageBytes, MADV_COLLAPSE);
}

Node::Node(uint32_t place, std::vector<uint32_t> ranks, const std::vector<int>& fds, uint32_t lanes,
           size_t piece_bytes)
    : place(place), ranks(std::move(ranks)), piece_bytes(piece_bytes) {
  const bool alone = this->ranks.size() == 1 && fds.empty();  // shares nothing
  if (place >= this->ranks.size() || (fds.size() != this->ranks.size() && !alone) || piece_bytes == 0 ||
      piece_bytes % 64 != 0)
    throw std::invalid_argument("these numbers describe no node");
  for (const int fd : fds)
    segments_.push_back(std::make_unique<Segment>(fd, fds.size() * lanes * kSlots * piece_bytes));
  if (!alone) segments_[place]->use_huge_pages();
}

std::optional<uint32_t> Node::place_of(uint32_t rank) const {
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  return at == ranks.end() ? std::nullopt : std::optional(static_cast<uint32_t>(at - ranks.begin()));
}

void sum_contributions(const NodePlan& plan, std::vector<const std::byte*> contributions, std::byte* target,
                       std::byte* also, size_t bytes) {
  constexpr size_t kBlockBytes = 16 * 1024;  // so that what is written and read again is in the first cache
  const auto& [dtype, op, prescale, postscale] = plan.arithmetic;
  const bool is_sum = prescale == 1.0 && (op == Op::sum || op == Op::average);
  const size_t at_once = is_sum ? std::min(contributions.size(), kMostTerms) : 1;
  const bool as_is =
      accumulates_in_place(dtype, op) && plan.divisor == 1 && (postscale == 1.0 || op == Op::copy);
  const bool direct = as_is && at_once > 1 && at_once == contributions.size();
  const size_t step = kBlockBytes / accumulator_size(dtype, op) * wire_size(dtype);
  alignas(64) std::byte block[kBlockBytes];
  for (size_t done = 0; done < bytes; done += step) {
    const size_t length = std::min(step, bytes - done);
    const size_t elements = length / wire_size(dtype);
    const std::span<const std::byte* const> terms(contributions);
    if (at_once > 1) {
      add(dtype, direct ? target + done : block, direct ? also + done : block, terms.first(at_once),
          elements);
    } else {
      widen(dtype, op, block, terms[0], elements, prescale);
    }
    for (const std::byte* term : terms.subspan(at_once))
      accumulate(dtype, op, block, term, elements, prescale);
    if (!as_is) finish(dtype, op, block, block, elements, postscale, plan.divisor);
    if (!direct) std::memcpy(target + done, block, length);
    if (!direct && also != target) std::memcpy(also + done, block, length);
    for (const std::byte*& contribution : contributions) contribution += length;
  }
}

}  // namespace byteps
