// The fixed frame header of the data plane: encode, decode, validate. Nothing here allocates or does I/O.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace byteps {

inline constexpr size_t kHeaderBytes = 40;
inline constexpr size_t kCellBytes = 64 * 1024;
inline constexpr size_t kMaxChunkCells = 8;
inline constexpr size_t kMaxPayloadBytes = kMaxChunkCells * kCellBytes;

enum class FrameType : uint8_t {
  push = 1,    // worker to server: cells of one contribution, or (flag `empty`) "I have nothing to add"
  result = 2,  // server to worker: cells of the sum, or (flag `done`) "complete", for those who want no data
  parked = 3,  // server to worker: your contribution is complete and waits only for other ranks
  failed = 4,  // server to worker: this round can never complete; `code` and `rank` say why
  heartbeat = 5,  // both ways: still alive
  local = 6,      // between ranks of a node: a step (`code`) of a sum in shared memory, see node_lane.h
};

inline constexpr uint16_t kLocalSteps = 7;  // of a `local` frame, from 1

enum FrameFlag : uint16_t {
  kFlagEmpty = 1,     // push, local: contributes nothing
  kFlagNoResult = 2,  // push, local: wants no data back
  kFlagDone = 4,      // result: carries no data
  kFlagIdle = 8,      // heartbeat: I shall send nothing until something changes here
  kFlagWanted = 16,   // parked: not you wait for others, others wait for you
};

struct Header {
  FrameType type = FrameType::heartbeat;
  uint32_t epoch = 0;      // version of the membership
  uint32_t tensor = 0;     // id given by the coordinator
  uint32_t partition = 0;  // index within the tensor
  uint32_t round = 0;      // n-th push_pull of this tensor, from 1
  uint32_t rank = 0;       // the worker concerned
  uint32_t offset = 0;     // bytes from the start of the partition; a multiple of the cell size
  uint32_t length = 0;     // payload bytes that follow
  int32_t priority = 0;    // larger is more urgent
  uint16_t flags = 0;
  uint16_t code = 0;  // of `failed`: a Status; of `local`: a LocalStep
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode(const Header& header);

// Nothing where the bytes are no header that a correct peer sends: magic, version, type, flags, code, or a
// payload that is longer than a chunk, misaligned, or present where the type carries none.
std::optional<Header> decode(const std::byte* bytes);

}  // namespace byteps
