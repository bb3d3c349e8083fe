// Fuzz target: a server's lane against workers that send the right frames, most of the time.
#include <map>

#include "script.h"
#include "server_lane.h"

namespace byteps {
namespace {

class ServerRun {
 public:
  explicit ServerRun(Script& script)
      : script_(script),
        workers_(1 + script.below(3)),
        lane_(workers_, script.one_in(3), lane_options(script)) {
    install(1, {24});
    install(2, {script_.is_large() ? kCellBytes + 24 : 16, 8});
    if (script_.is_large() && script_.one_in(2))
      install(3, {script_.one_in(8) ? 5 * kCellBytes + 8 : 2 * kCellBytes + 8});
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      wires_.push_back(connect([&](std::unique_ptr<Link> link) { lane_.connect(rank, std::move(link)); }));
    }
  }

  void act(uint8_t what) {
    if (what % 16 == 15) return happen();
    push(*wires_[what % workers_], what % workers_);
  }

  void turn() {
    CHECK(lane_.turn(false));
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      for (const auto& [header, hash] : wires_[rank]->listen()) heard(header, hash, rank);
    }
  }

  void end() {
    for (auto& wire : wires_) wire->may_receive = wire->may_send = SIZE_MAX;
    for (int i = 0; i < 4; ++i) turn();
    for (const auto& wire : wires_) CHECK(!wire->closed || !wire->correct);
  }

 private:
  struct Part {
    uint32_t tensor, index;
    uint64_t bytes;
    bool for_first_only;
  };
  struct Progress {
    uint32_t round = 1;
    uint64_t offset = 0;
  };

  void install(uint32_t tensor, const std::vector<uint64_t>& sizes) {
    constexpr double kScales[]{1, 1, 0.5, -3, 1e300, 0};
    const Arithmetic arithmetic{static_cast<DType>(script_.below(kDTypes)),
                                static_cast<Op>(script_.below(kOps)), kScales[script_.below(6)],
                                kScales[script_.below(6)]};
    // Some are not for all ranks: what the others push ends their connections.
    std::vector<uint32_t> members;
    if (tensor == 2 && script_.one_in(4)) members.push_back(0);
    for (uint32_t index = 0; index < sizes.size(); ++index) {
      lane_.install({tensor, arithmetic, {}, members}, {index, 0, sizes[index]});
      parts_.push_back({tensor, index, sizes[index], !members.empty()});
    }
  }

  void push(Wire& wire, uint32_t rank) {
    const size_t which = script_.below(static_cast<uint32_t>(parts_.size()));
    const Part& part = parts_[which];
    Progress& progress = progress_[{rank, which}];
    const uint8_t how = script_.byte();
    const bool again = progress.offset == part.bytes;  // everything was sent: allowed, and discarded
    Header header{FrameType::push, 3, part.tensor, part.index, progress.round, rank};
    if (!again) header.offset = static_cast<uint32_t>(progress.offset);
    header.length = static_cast<uint32_t>(
        std::min<uint64_t>(part.bytes - header.offset, how % 4 == 1 ? kCellBytes : kMaxPayloadBytes));
    if (how % 8 == 2) header.flags = kFlagNoResult;
    if (how % 8 == 3 && progress.offset == 0) header.flags = kFlagEmpty;
    Script::mend(header);
    if (!again) progress.offset = header.length > 0 ? header.offset + header.length : part.bytes;
    if (how % 16 == 4) script_.disturb(header);
    wire.correct = wire.correct && how % 16 != 4 && !(part.for_first_only && rank > 0);
    wire.feed(script_, header);
  }

  void happen() {
    const uint32_t rank = script_.below(workers_);
    const uint32_t what = script_.below(8);
    if (what == 0) lane_.depart(rank);
    if (what == 1) lane_.retire(1 + script_.below(4));
    if (what == 2) wires_[rank]->hung_up = true;
    if (what == 3) wires_[rank]->feed(script_, heartbeat());
    if (what == 4) connect([&](std::unique_ptr<Link> link) { lane_.connect(rank, std::move(link)); });
    if (what == 5 || what == 6) report();
    if (what == 7) wires_[rank]->allow(script_);
    if (what == 2) wires_[rank]->correct = false;
  }

  Header heartbeat() {
    Header header{.epoch = 3};
    if (script_.one_in(2)) header.flags = kFlagIdle;
    return header;
  }

  void report() const {
    std::vector<Server::Missing> missing;
    std::vector<Server::OpenRound> open;
    for (uint32_t tensor = 0; tensor < 4; ++tensor) lane_.add_missing(tensor, missing);
    lane_.add_open_rounds(open);
    CHECK(open.size() <= parts_.size() && missing.size() <= workers_);
  }

  void heard(const Header& header, size_t hash, uint32_t rank) {
    CHECK(header.epoch == 3 && header.type != FrameType::push);
    if (header.type == FrameType::heartbeat) return;
    const auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& each) {
      return each.tensor == header.tensor && each.index == header.partition;
    });
    CHECK(part != parts_.end() && header.offset + uint64_t{header.length} <= part->bytes);
    CHECK(header.rank == rank || header.type == FrameType::failed);
    CHECK(!part->for_first_only || rank == 0);
    // Every rank gets the same sum, also who reads it when the server is rounds ahead.
    const std::array<uint32_t, 5> chunk{header.tensor, header.partition, header.round, header.offset,
                                        header.length};
    if (header.length > 0) CHECK(results_.try_emplace(chunk, hash).first->second == hash);
    const bool over = header.type == FrameType::failed || (header.flags & kFlagDone) != 0 ||
                      header.offset + uint64_t{header.length} == part->bytes;
    if (header.type == FrameType::parked || !over) return;
    Progress& progress = progress_[{rank, static_cast<size_t>(part - parts_.begin())}];
    if (header.round >= progress.round) progress = {header.round + 1, 0};
  }

  Script& script_;
  const uint32_t workers_;
  ServerLane lane_;
  std::vector<Part> parts_;
  std::vector<std::shared_ptr<Wire>> wires_;  // by rank
  std::map<std::pair<uint32_t, size_t>, Progress> progress_;
  std::map<std::array<uint32_t, 5>, size_t> results_;  // by chunk: the hash of its bytes
};

}  // namespace
}  // namespace byteps

extern "C" {
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return byteps::play<byteps::ServerRun>(data, size);
}
}
