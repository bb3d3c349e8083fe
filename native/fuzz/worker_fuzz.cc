// Fuzz target: a worker's lane against servers that answer as they should, most of the time. The memory of a
// transfer goes as soon as it is over, so that a later use is seen.
#include <thread>

#include "script.h"
#include "worker_lane.h"

namespace byteps {
namespace {

constexpr uint32_t kRank = 1;
constexpr uint32_t kServers = 3;
constexpr std::chrono::milliseconds kPause(3);  // longer than what makes a lane idle

class WorkerRun {
 public:
  explicit WorkerRun(Script& script)
      : script_(script), worker_({kRank, 0, {}}), lane_(worker_, lane_options(script), 1) {
    declare({{0, 0, 0, 0, 24}});
    declare({{0, 1, 0, 0, script_.is_large() ? kCellBytes + 24 : 16}, {1, 0, 0, 0, 8}});
    declare(
        {{0, 2, 0, 0, 24}, {1, 1, 0, 0, script_.is_large() && script_.one_in(8) ? 5 * kCellBytes + 8 : 32}});
    wires_.resize(kServers);
    for (uint32_t server = 0; server + script_.one_in(8) < kServers; ++server) join(server);
  }

  void act(uint8_t what) {
    Tensor& tensor = tensors_[what / 4 % tensors_.size()];
    if (what % 16 == 15) return happen();
    what % 4 == 0 ? submit(tensor) : answer(tensor);
  }

  void turn() {
    CHECK(lane_.turn(false));
    for (Tensor& tensor : tensors_) {
      if (!tensor.transfer || tensor.transfer->status() == Status::pending) continue;
      tensor.source.reset();
      tensor.destination.reset();
    }
    for (const auto& wire : wires_) {
      if (!wire) continue;
      for (const auto& [header, hash] : wire->listen()) heard(header);
    }
  }

  void end() {
    for (auto& wire : wires_) {
      if (wire) wire->may_receive = wire->may_send = SIZE_MAX;
    }
    for (int i = 0; i < 4; ++i) turn();
    bool correct = !failed_;
    for (const auto& wire : wires_) correct = correct && (!wire || wire->correct);
    for (const auto& wire : wires_) CHECK(!correct || !wire || !wire->closed);
    lane_.fail(Status::closed, 0);
    for (const Tensor& tensor : tensors_) {
      CHECK(!tensor.transfer || tensor.transfer->status() != Status::pending);
    }
  }

 private:
  struct Tensor {
    std::vector<PartRef> parts;
    uint64_t bytes = 0;
    uint32_t round = 0;
    std::unique_ptr<std::byte[]> source, destination;
    std::shared_ptr<Transfer> transfer;
    std::vector<uint32_t> answered;  // bytes, by part
  };

  void declare(std::vector<PartRef> parts) {
    Tensor& tensor = tensors_.emplace_back();
    for (PartRef& part : parts) {
      part.offset = tensor.bytes;
      tensor.bytes += part.bytes;
    }
    tensor.parts = std::move(parts);
  }

  void join(uint32_t server) {
    auto wire = connect([&](std::unique_ptr<Link> link) { lane_.connect(server, std::move(link)); });
    if (!wires_[server]) wires_[server] = std::move(wire);
  }

  void submit(Tensor& tensor) {
    if (tensor.transfer && tensor.transfer->status() == Status::pending) return;
    const uint8_t how = script_.byte();
    if (how % 8 != 1) tensor.source = std::make_unique<std::byte[]>(tensor.bytes);
    if (how % 8 != 2) tensor.destination = std::make_unique<std::byte[]>(tensor.bytes);
    tensor.answered.assign(tensor.parts.size(), 0);
    tensor.transfer = std::make_shared<Transfer>(number(tensor), ++tensor.round, tensor.source.get(),
                                                 tensor.destination.get(), how / 8 - 8, tensor.parts.size());
    lane_.begin(tensor.transfer, tensor.parts);
  }

  uint32_t number(const Tensor& tensor) const { return static_cast<uint32_t>(&tensor - tensors_.data()) + 1; }

  void answer(Tensor& tensor) {
    const uint32_t which = script_.below(static_cast<uint32_t>(tensor.parts.size()));
    const PartRef& part = tensor.parts[which];
    const uint8_t how = script_.byte();
    const bool sound = how % 16 != 4;
    Wire* wire = wires_[sound ? part.server : how / 16 % kServers].get();
    if (wire == nullptr || !tensor.transfer) return;
    uint32_t& done = tensor.answered[which];
    const auto left = static_cast<uint32_t>(std::min<uint64_t>(part.bytes - done, kMaxPayloadBytes));
    Header header{FrameType::result, 3, number(tensor), part.index, tensor.round, kRank, done};
    header.length = how % 8 == 1 ? std::min<uint32_t>(left, kCellBytes) : left;
    if (!tensor.transfer->destination) header.flags = kFlagDone;
    if (how % 8 == 2 || left == 0) header.type = FrameType::parked;
    if (how % 8 == 5) header.type = FrameType::parked, header.flags = kFlagWanted;
    if (how % 32 == 3) header.type = FrameType::failed;
    Script::mend(header);
    if (!sound) script_.disturb(header);
    wire->correct = wire->correct && sound;
    wire->feed(script_, header);
    if (sound) done += header.length;
  }

  void happen() {
    const uint32_t server = script_.below(kServers);
    const uint32_t what = script_.below(8);
    Wire* wire = wires_[server].get();
    if (what == 0) lane_.retract(1 + server);
    if (what == 1) join(server);
    if (what == 2) lane_.set_credit(script_.byte());
    if (what == 7 && script_.one_in(16)) std::this_thread::sleep_for(kPause);  // workload
    if (what == 3 && script_.one_in(4)) {
      failed_ = true;
      lane_.fail(Status::departed, server);
    }
    if (wire == nullptr) return;
    if (what == 4) wire->feed(script_, {.epoch = 3});  // a heartbeat
    if (what == 5 && script_.one_in(4)) wire->hung_up = !(wire->correct = false);
    if (what >= 6) wire->allow(script_);
  }

  void heard(const Header& header) const {
    CHECK(header.epoch == 3);
    if (header.type == FrameType::heartbeat) return;
    CHECK(header.type == FrameType::push && header.rank == kRank && header.tensor <= tensors_.size());
    const Tensor& tensor = tensors_[header.tensor - 1];
    CHECK(header.round <= tensor.round && header.partition < tensor.parts.size());
    CHECK(header.offset + uint64_t{header.length} <= tensor.parts[header.partition].bytes);
  }

  Script& script_;
  Worker worker_;  // without lanes of its own: no threads
  std::vector<Tensor> tensors_;
  WorkerLane lane_;
  std::vector<std::shared_ptr<Wire>> wires_;  // by server; null: not connected
  bool failed_ = false;
};

}  // namespace
}  // namespace byteps

extern "C" {
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return byteps::play<byteps::WorkerRun>(data, size);
}
}
