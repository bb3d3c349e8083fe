// Fuzz target: a worker's lane whose rank sums with a neighbour first, and a neighbour that keeps to the
// steps of a round, most of the time. What the neighbour owns is partition 1 of each tensor.
#include <sys/mman.h>

#include <deque>

#include "script.h"
#include "worker_lane.h"

namespace byteps {
namespace {

constexpr uint32_t kServers = 1;
constexpr size_t kPiece = 64;
constexpr uint64_t kPartBytes = 10 * kPiece + 4;  // more pieces than slots

std::vector<int> segments() {
  static const std::vector<int> both{memfd_create("0", MFD_CLOEXEC), memfd_create("1", MFD_CLOEXEC)};
  for (const int one : both) CHECK(ftruncate(one, Node::kSlots * 2 * kPiece) == 0);
  return both;
}

class NodeRun {
 public:
  explicit NodeRun(Script& script)
      : script_(script), worker_({0, 0, {}}), lane_(worker_, lane_options(script), 1) {
    lane_.join_node(0, std::make_shared<Node>(0, std::vector<uint32_t>{0, 1}, segments(), 1, kPiece),
                    kServers);
    for (const bool pushes : {true, false}) {
      NodePlan plan{{}, 1, pushes, {0, 1}};
      if (script_.one_in(4)) plan.members = {0, 1, 7};
      tensors_.emplace_back().plan = std::make_shared<NodePlan>(plan);
    }
    server_ = connect([&](std::unique_ptr<Link> link) { lane_.connect(0, std::move(link)); });
    neighbour_ = connect([&](std::unique_ptr<Link> link) { lane_.add_neighbour(1, std::move(link)); });
  }

  void act(uint8_t what) {
    Tensor& tensor = tensors_[what / 16 % tensors_.size()];
    if (what % 16 == 15) return happen();
    if (what % 4 == 0) return submit(tensor);
    if (what % 4 == 1) return sum_up();
    what % 4 == 2 && !answers_.empty() ? answer() : lead(tensor);
  }

  void turn() {
    CHECK(lane_.turn(false));
    for (Tensor& tensor : tensors_) {
      if (!tensor.transfer || tensor.transfer->status() == Status::pending) continue;
      tensor.source.reset();
      tensor.destination.reset();
    }
    for (const auto& [header, hash] : server_->listen()) {
      if (header.type == FrameType::push && header.offset + header.length + kPiece > kPartBytes)
        pushes_.push_back(header);
    }
    for (const auto& [header, hash] : neighbour_->listen()) heard(header);
  }

  void end() {
    for (Wire* wire : {server_.get(), neighbour_.get()}) wire->may_receive = wire->may_send = SIZE_MAX;
    for (int i = 0; i < 4; ++i) turn();
    CHECK(failed_ || !server_->correct || !neighbour_->correct || !neighbour_->closed);
    lane_.fail(Status::closed, 0);
    for (const Tensor& tensor : tensors_)
      CHECK(!tensor.transfer || tensor.transfer->status() != Status::pending);
  }

 private:
  struct Tensor {
    std::shared_ptr<const NodePlan> plan;
    uint32_t round = 0;
    std::unique_ptr<std::byte[]> source, destination;
    std::shared_ptr<Transfer> transfer;
    uint32_t begun = 0;                    // the neighbour's last round of partition 0
    uint32_t wanted = 0;                   // the round of partition 1 that this rank has begun
    uint64_t granted = 0, handed_out = 0;  // bytes of it
  };

  void submit(Tensor& tensor) {
    if (tensor.transfer && tensor.transfer->status() == Status::pending) return;
    const uint8_t how = script_.byte();
    if (how % 8 != 1) tensor.source = std::make_unique<std::byte[]>(2 * kPartBytes);
    if (how % 8 != 2) tensor.destination = std::make_unique<std::byte[]>(2 * kPartBytes);
    tensor.transfer = std::make_shared<Transfer>(number(tensor), ++tensor.round, tensor.source.get(),
                                                 tensor.destination.get(), how / 8 - 8, 2);
    lane_.begin(tensor.transfer, {{0, 0, 0, 0, kPartBytes}, {1, 0, 0, kPartBytes, kPartBytes}}, tensor.plan);
  }

  uint32_t number(const Tensor& tensor) const { return static_cast<uint32_t>(&tensor - tensors_.data()) + 1; }

  // The server's answer to a push.
  void sum_up() {
    if (pushes_.empty()) return;
    const Header push = pushes_.front();
    pushes_.pop_front();
    const uint8_t how = script_.byte();
    Header header{FrameType::result, 3, push.tensor, push.partition, push.round, 0, 0};
    header.length = kPartBytes;
    if (push.flags & kFlagNoResult) header.flags = kFlagDone;
    if (how % 8 == 3) header.type = FrameType::failed;
    Script::mend(header);
    server_->feed(script_, header);
  }

  void answer() {
    const Header header = answers_.front();
    answers_.pop_front();
    say(header);
  }

  // Begins a round of what this rank owns, or goes on with one of what the neighbour owns.
  void lead(Tensor& tensor) {
    const uint8_t how = script_.byte();
    Header header{FrameType::local, 3, number(tensor), 1, tensor.wanted, 1};
    if (tensor.wanted == 0 || how % 4 == 0) {
      header.partition = 0;
      header.round = tensor.begun = std::min(tensor.begun + 1, tensor.round + 1);
      if (how % 16 == 4) header.flags = kFlagEmpty;
      if (how % 16 == 8) header.flags = kFlagNoResult;
      return say(header, LocalStep::begun);
    }
    const bool grants = tensor.granted < kPartBytes && how % 8 != 1;
    uint64_t& done = grants ? tensor.granted : tensor.handed_out;
    header.offset = static_cast<uint32_t>(done);
    header.priority = static_cast<int32_t>(done / kPiece % Node::kSlots);
    done = std::min(done + kPiece, kPartBytes - 1);
    if (how % 16 == 3) {
      header.priority = how / 16 % 8;  // a status
      tensor.wanted = 0;
      neighbour_->correct = false;
      return say(header, LocalStep::failed);
    }
    if (tensor.transfer && !tensor.transfer->destination && how % 8 == 7) return say(header, LocalStep::done);
    say(header, grants ? LocalStep::grant : LocalStep::result);
  }

  void say(Header header, LocalStep step) {
    header.code = static_cast<uint16_t>(step);
    say(header);
  }

  void say(Header header) {
    if (script_.one_in(16)) {
      neighbour_->correct = false;
      const uint8_t value = script_.byte();
      if (value % 4 == 0) header.code = static_cast<uint16_t>(1 + value / 4 % kLocalSteps);
      if (value % 4 == 1) header.priority = value / 4 - 8;
      if (value % 4 == 2) header.offset = value;
      if (value % 4 == 3) header.tensor = value % 8, header.type = FrameType::parked, header.code = 0;
    }
    neighbour_->feed(script_, header);
  }

  void happen() {
    const uint8_t how = script_.byte();
    const uint32_t what = how % 8;
    std::set<uint32_t> ranks;
    lane_.add_missing(1 + how / 8 % 2, ranks);
    for (const uint32_t rank : ranks) CHECK(rank < 2);
    if (what == 0) lane_.retract(1 + how / 8 % 2);
    if (what == 1) lane_.depart(how / 8 % 2 == 0 ? 1 : 7);
    if (what == 2) neighbour_->feed(script_, {.epoch = 3});  // a heartbeat
    if (what == 3 && script_.one_in(4)) {
      failed_ = true;
      lane_.fail(Status::departed, 1);
    }
    if (what == 4 && script_.one_in(4)) neighbour_->hung_up = !(neighbour_->correct = false);
    if (what >= 5) (what == 5 ? server_ : neighbour_)->allow(script_);
  }

  void heard(const Header& header) {
    if (header.type == FrameType::heartbeat) return;
    CHECK(header.type == FrameType::local && header.epoch == 3);
    const bool is_known = header.tensor > 0 && header.tensor <= tensors_.size();
    CHECK(is_known || !neighbour_->correct);
    if (!is_known) return;  // what the neighbour has made up itself
    Tensor& tensor = tensors_[header.tensor - 1];
    const auto step = static_cast<LocalStep>(header.code);
    Header reply = header;
    reply.rank = 1;
    reply.code = static_cast<uint16_t>(step == LocalStep::grant ? LocalStep::put : LocalStep::taken);
    if (step == LocalStep::grant || step == LocalStep::result) answers_.push_back(reply);
    if (step != LocalStep::begun) return;
    tensor.wanted = header.round;
    tensor.granted = tensor.handed_out = 0;
  }

  Script& script_;
  Worker worker_;  // without lanes of its own: no threads
  std::vector<Tensor> tensors_;
  WorkerLane lane_;
  std::shared_ptr<Wire> server_, neighbour_;
  std::deque<Header> pushes_, answers_;  // heard and not answered
  bool failed_ = false;
};

}  // namespace
}  // namespace byteps

extern "C" {
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return byteps::play<byteps::NodeRun>(data, size);
}
}
