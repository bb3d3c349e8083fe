// One lane's part in the sums of a node: what this rank owns, and what it gives to its neighbours.
//
// Nothing is put into shared memory before all ranks of the node have begun a round: a slot never waits for a
// program, nor for another node, so slots cannot run out for good. Between a neighbour and an owner pass
// frames of type `local`, without payload; the steps below are their codes, in the order of a round.
#pragma once

#include <array>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "node.h"
#include "worker.h"

namespace byteps {

enum class LocalStep : uint16_t {
  begun = 1,  // to the owner: I take part. Flags: `empty`, `no result`
  grant,      // to a neighbour: put the piece at `offset` into this slot (number: in `priority`)
  put,        // to the owner: it is there
  result,     // to a neighbour: the result of that piece is in this slot
  taken,      // to the owner: the slot is free as far as I am concerned
  done,       // to a neighbour that wants no result: the round is over
  failed,  // to a neighbour: there will be no result; status in `priority`, and `rank`. To the owner: `rank`
           // has left, which I know to take part; unless all ranks of the node are here, it fails
};

class WorkerLane;

class NodeLane {
 public:
  NodeLane(WorkerLane& lane, uint32_t number, std::shared_ptr<const Node> node);

  void begin(const std::shared_ptr<Transfer>& transfer, const PartRef& part,
             const std::shared_ptr<const NodePlan>& plan);
  bool on_frame(uint32_t from, const Header& header);  // false: no correct neighbour sends this
  void retract(uint32_t tensor);
  void depart(uint32_t rank);  // it left in order; what it sent has been read
  void fail(Status status, uint32_t peer);
  void resolve_finished();
  // Ranks of this node that a partition of the tensor waits for, which this rank owns.
  void add_missing(uint32_t tensor, std::set<uint32_t>& ranks) const;
  const Node& node() const { return *node_; }

 private:
  struct Key {
    uint32_t tensor;
    uint32_t partition;
    uint32_t round;
    auto operator<=>(const Key&) const = default;
  };

  struct Arrival {
    bool here = false;
    bool gives = false;
    bool wants = false;
  };

  // Why a round has no result, for those who come to it later.
  struct Failure {
    uint32_t round;
    Status status;
    uint32_t peer;
  };

  // A partition that this rank owns.
  struct Owned {
    explicit Owned(size_t places) : arrivals(places) {}
    std::shared_ptr<Transfer> transfer;  // this rank's own; null until it has begun
    PartRef part;
    std::shared_ptr<const NodePlan> plan;
    std::vector<Arrival> arrivals;  // by place
    int32_t priority = INT32_MIN;   // the most urgent that a rank gave
    uint64_t sequence = 0;          // of becoming complete
    uint64_t next = 0;              // where the next piece begins: to be granted, or to be handed out
    uint64_t summed = 0;
    std::byte* sum = nullptr;
    Buffer own;            // memory of the sum, where this rank wants none
    bool pushing = false;  // the lane has it
  };
  using OwnedMap = std::map<Key, Owned>;

  // A partition that a neighbour owns.
  struct Guest {
    std::shared_ptr<Transfer> transfer;
    PartRef part;
    std::shared_ptr<const NodePlan> plan;
    uint32_t owner = 0;
    uint64_t received = 0;
  };
  using GuestMap = std::map<Key, Guest>;

  // Once a piece is added up its areas are free for the next one, while the result is still being taken from
  // the owner's area: who takes it puts what is next in the same turn.
  struct Slot {
    Key key{};
    uint64_t offset = 0;
    std::vector<uint32_t> givers;  // places that have yet to put the piece
    bool is_full = false;          // all have, and it is not added up
    std::vector<uint32_t> takers;  // places that have yet to take the last result
  };

  // Whose turn it is: priority, order, which.
  using Turn = std::tuple<int64_t, uint64_t, Key>;

  static Turn turn(const Key& key, const Owned& owned) {
    return {-int64_t{owned.priority}, owned.sequence, key};
  }
  static Key key_of(const Header& header) { return {header.tensor, header.partition, header.round}; }
  uint64_t piece_at(const PartRef& part, uint64_t offset) const;
  std::byte* own_area(uint32_t slot) const { return area(node_->place, slot, node_->place); }
  std::byte* area(uint32_t owner, uint32_t slot, uint32_t place) const {
    return node_->area(owner, number_, slot, place);
  }

  void tell(uint32_t place, LocalStep step, const Key& key, uint64_t offset = 0, int32_t number = 0,
            uint32_t rank = 0, uint16_t flags = 0);
  void moved(uint64_t bytes);
  void note(EventKind kind, const Transfer& transfer, const PartRef& part);
  void note_push(const Transfer& transfer, const PartRef& part);
  void arrive(const Key& key, Owned& owned, uint32_t place, Arrival how, int32_t priority);
  void all_are_here(const Key& key, Owned& owned);
  bool anybody_wants(const Owned& owned) const;
  bool is_complete(const Owned& owned) const;
  bool lacks(const Owned& owned, uint32_t rank) const;
  bool has_departed(uint32_t place) const { return departed_.contains(node_->ranks[place]); }
  std::vector<uint32_t> neighbours(const Owned& owned, bool Arrival::* how) const;
  void advance();
  std::optional<uint32_t> free_slot(bool for_result) const;
  void grant(const Key& key, Owned& owned, uint32_t slot);
  void hand_out(const Key& key, Owned& owned, uint32_t slot);
  void answered(uint32_t from, uint32_t slot, LocalStep step);
  void look_at(uint32_t slot);
  void add_up(const Key& key, Owned& owned, std::optional<uint32_t> slot, uint64_t offset, uint64_t bytes);
  void summed(const Key& key, Owned& owned);
  void pushed(const Key& key, Status status, uint32_t peer);
  void give_out(const Key& key, Owned& owned);
  void finish(OwnedMap::iterator at);
  void fail_round(OwnedMap::iterator at, Status status, uint32_t peer);
  const Failure* failure_of(const Key& key) const;

  void on_begun(uint32_t from, const Header& header);
  bool on_guest_frame(uint32_t from, LocalStep step, const Header& header);
  void warn(const Key& key, const Guest& guest, uint32_t rank);
  void put(const Key& key, const Guest* guest, uint32_t owner, const Header& header);
  void take(const Key& key, GuestMap::iterator at, uint32_t owner, const Header& header);
  void end(GuestMap::iterator at, Status status, uint32_t peer);

  WorkerLane& lane_;
  const uint32_t number_;
  const std::shared_ptr<const Node> node_;
  OwnedMap owned_;
  GuestMap guests_;
  std::array<Slot, Node::kSlots> slots_;
  std::map<std::pair<uint32_t, uint32_t>, Failure> failures_;  // the last, by tensor and partition
  std::set<Turn> to_grant_;
  std::set<Turn> to_hand_out_;
  std::set<uint32_t> departed_;                      // ranks
  std::set<uint32_t> retracted_;                     // tensors
  std::vector<std::shared_ptr<Transfer>> finished_;  // not resolved yet
  uint64_t sequence_ = 0;
  uint64_t moved_ = 0;  // since neighbours were told
};

}  // namespace byteps
