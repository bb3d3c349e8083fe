// What the ranks of one node share: memory, in which they sum before anything leaves the node.
//
// Each rank owns some partitions of each tensor and one segment, which its neighbours have mapped too. A
// segment is cut into slots, and a slot into one area per rank. Neighbours put a piece of their contribution
// into their areas, the owner adds the pieces up, and hands the result out through its own area.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "mapping.h"
#include "summation.h"

namespace byteps {

// How the ranks of a node take part in the rounds of one tensor. Places count the ranks of a node.
struct NodePlan {
  Arithmetic arithmetic;         // of the node's sum
  uint32_t divisor = 1;          // of the node's sum
  bool pushes = true;            // a server adds up what the nodes push; else this node has all there is
  std::vector<uint32_t> places;  // of those who take part, in the order of ranks
  uint32_t first = 0;            // whose turn it is to own partition 0
  std::vector<uint32_t> members = {};  // ranks that take part, here and elsewhere; empty: all

  uint32_t owner(uint32_t partition) const { return places[(uint64_t{first} + partition) % places.size()]; }
  bool has(uint32_t place) const;
  bool is_for(uint32_t rank) const;
};

// A file of memory, mapped as long as this lives.
class Segment {
 public:
  Segment(int fd, size_t bytes);  // the descriptor stays the caller's; throws std::runtime_error

  std::byte* data() const { return data_; }
  // Puts it on huge pages, in all processes that have it mapped; where there are none it stays as it is.
  void use_huge_pages() const;

 private:
  const size_t bytes_;
  const Mapping room_;
  std::byte* const data_;  // where huge pages can lie
};

class Node {
 public:
  static constexpr uint32_t kSlots = 8;  // per lane

  // `fds`: the segments by place, each with room for `lanes` * kSlots * places * `piece_bytes`;
  // none for a rank that is alone. Throws std::invalid_argument, or std::runtime_error for what cannot be
  // mapped.
  Node(uint32_t place, std::vector<uint32_t> ranks, const std::vector<int>& fds, uint32_t lanes,
       size_t piece_bytes);

  std::optional<uint32_t> place_of(uint32_t rank) const;
  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  // Where rank `place` puts its piece, or the owner the result.
  std::byte* area(uint32_t owner, uint32_t lane, uint32_t slot, uint32_t place) const {
    const size_t index = (size_t{lane} * kSlots + slot) * ranks.size() + place;
    return segments_[owner]->data() + index * piece_bytes;
  }

  const uint32_t place;  // this rank's
  const std::vector<uint32_t> ranks;
  const size_t piece_bytes;

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
};

// target = also = sum of the contributions, scaled and rounded, added in their order. Contributions may lie
// where a target does, and both targets be one.
void sum_contributions(const NodePlan& plan, std::vector<const std::byte*> contributions, std::byte* target,
                       std::byte* also, size_t bytes);

}  // namespace byteps
