// Tasks of weight gradients and between learners: gather, reduce, update, average.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "factory.h"
#include "model.h"
#include "weights.h"

namespace bow::planner {

using UpdateTime = std::function<Time(int64_t bytes, int device)>;

class WeightTasks {
 public:
  WeightTasks(Tasks& tasks, Factory& factory, Model& model, int num_devices, UpdateTime update_time)
      : tasks_(tasks),
        factory_(factory),
        model_(model),
        num_devices_(num_devices),
        update_time_(std::move(update_time)) {
    clear();
  }

  void clear() {
    groups_.clear();
    for (int learner = 0; learner < model_.learners; ++learner) {
      for (WeightParts& parts : model_.groups) groups_.emplace_back(parts, num_devices_);
    }
    is_touched_.assign(groups_.size(), 0);
    trained_bytes_.assign(num_devices_, 0);
    frozen_bytes_.assign(num_devices_, 0);
    averagings_.assign(num_devices_ / model_.learners, {});
    before_.clear();
  }

  // By device: size of the weights that it holds.
  int64_t trained_bytes(int device) const { return trained_bytes_[device]; }
  int64_t frozen_bytes(int device) const { return frozen_bytes_[device]; }

  // Call before tiles are added or removed.
  void begin() {
    trained_before_ = trained_bytes_;
    frozen_before_ = frozen_bytes_;
    averagings_before_ = averagings_;
  }

  // Add (1) or remove (-1) an operator's tiles.
  void count(int op, const Tiling& tiling, const std::vector<int32_t>& devices, int sign) {
    for (const int number : model_.operator_of(op).groups) touch(model_.group_of(op, number));
    recount(op, tiling, devices, sign);
  }

  // Kill obsolete tasks, once all tiles were counted.
  void kill() {
    for (Before& before : before_) kill(before);
    for (size_t device = 0; device < averagings_.size(); ++device) {
      Averaging& averaging = averagings_[device];
      const int64_t bytes = model_.learners > 1 ? trained_bytes_[device] : 0;
      if (averaging.bytes == bytes) continue;
      if (averaging.task != kNone) tasks_.kill(std::exchange(averaging.task, kNone));
      averaging.bytes = bytes;
    }
  }

  // Create their replacements.
  void create() {
    for (const Before& before : before_) create(before.group);
    for (size_t device = 0; device < averagings_.size(); ++device) average(static_cast<int>(device));
  }

  // Call after `create`, for the operators whose tiles were added.
  void connect(int op, const Placed& placed) {
    for (const int number : model_.operator_of(op).groups) {
      WeightGroup& group = groups_[model_.group_of(op, number)];
      if (!group.trainable()) continue;
      for (size_t tile = 0; tile < placed.devices.size(); ++tile) {
        tasks_.connect(placed.backward[tile], group.devices()[placed.devices[tile]].gather);
      }
    }
  }

  void commit() { before_.clear(); }

  // Call `recount` first, for everything that was counted.
  void rollback() {
    for (Before& before : before_) {
      WeightGroup& group = groups_[before.group];
      group.take_changed();
      group.devices() = std::move(before.devices);
      if (before.has_shared) group.shared() = std::move(before.shared);
    }
    trained_bytes_ = trained_before_;
    frozen_bytes_ = frozen_before_;
    averagings_ = averagings_before_;
    before_.clear();
  }

  // Add or remove tiles, without a journal.
  void recount(int op, const Tiling& tiling, const std::vector<int32_t>& devices, int sign) {
    const std::vector<int>& groups = model_.operator_of(op).groups;
    for (size_t index = 0; index < groups.size(); ++index) {
      WeightGroup& group = groups_[model_.group_of(op, groups[index])];
      for (size_t tile = 0; tile < devices.size(); ++tile) group.count(tiling.parts[index][tile], devices[tile], sign);
    }
  }

 private:
  struct Averaging {
    int64_t bytes = 0;
    Id task = kNone;
  };

  struct Before {
    int group = 0;
    std::vector<WeightGroup::Device> devices;
    std::vector<Shared> shared;
    bool has_shared = false;
  };

  void touch(int group) {
    if (std::exchange(is_touched_[group], 1)) return;
    before_.push_back({group, groups_[group].devices(), {}, false});
  }

  void kill(Before& before) {
    WeightGroup& group = groups_[before.group];
    if (!group.take_changed()) return;
    std::vector<Shared> sets = group.sets();
    std::vector<int64_t> bytes(num_devices_);
    for (const Shared& set : sets) {
      for (const int32_t member : members_of(set.mask)) bytes[member] += set.bytes;
    }
    std::vector<int64_t>& total = group.trainable() ? trained_bytes_ : frozen_bytes_;
    for (int device = 0; device < num_devices_; ++device) {
      WeightGroup::Device& of = group.devices()[device];
      total[device] += bytes[device] - of.bytes;
      if (of.update != kNone && (!of.tiles || of.bytes != bytes[device])) tasks_.kill(std::exchange(of.update, kNone));
      if (of.gather != kNone && !of.tiles) tasks_.kill(std::exchange(of.gather, kNone));
      of.bytes = bytes[device];
    }
    // Both are sorted.
    auto set = sets.begin();
    for (const Shared& old : group.shared()) {
      while (set != sets.end() && *set < old) ++set;
      if (set != sets.end() && set->mask == old.mask && set->bytes == old.bytes) {
        set->reduction = old.reduction;
      } else if (old.reduction != kNone) {
        tasks_.kill(old.reduction);
      }
    }
    before.shared = std::exchange(group.shared(), std::move(sets));
    before.has_shared = true;
  }

  void create(int number) {
    WeightGroup& group = groups_[number];
    is_touched_[number] = 0;
    if (!group.trainable()) return;
    for (int device = 0; device < num_devices_; ++device) {
      WeightGroup::Device& of = group.devices()[device];
      if (!of.tiles) continue;
      if (of.gather == kNone) of.gather = factory_.tile(Kind::kGather, number, 0, device, 0);
      if (of.update == kNone) {
        of.update = factory_.tile(Kind::kUpdate, number, 0, device, update_time_(of.bytes, device));
        tasks_.connect(of.gather, of.update);
      }
    }
    for (Shared& set : group.shared()) reduce(number, set);
  }

  void reduce(int number, Shared& set) {
    const std::vector<int32_t> members = members_of(set.mask);
    if (members.size() < 2) return;
    const bool is_new = set.reduction == kNone;
    if (is_new) set.reduction = factory_.sum(Kind::kReduction, number, 0, members, set.bytes);
    for (const int32_t member : members) {
      const WeightGroup::Device& of = groups_[number].devices()[member];
      if (is_new) tasks_.connect(of.gather, set.reduction);
      if (is_new || tasks_[of.update].has(kFresh)) tasks_.connect(set.reduction, of.update);
    }
  }

  // Average over a device of the first learner and the corresponding devices of the others.
  void average(int device) {
    Averaging& averaging = averagings_[device];
    if (averaging.task != kNone || !averaging.bytes) return;
    std::vector<int32_t> members;
    for (int member = device; member < num_devices_; member += static_cast<int>(averagings_.size())) {
      members.push_back(member);
    }
    averaging.task = factory_.sum(Kind::kAveraging, 0, device, members, averaging.bytes);
  }

  Tasks& tasks_;
  Factory& factory_;
  Model& model_;
  int num_devices_;
  UpdateTime update_time_;
  std::vector<WeightGroup> groups_;  // of all learners
  std::vector<int64_t> trained_bytes_, frozen_bytes_;
  std::vector<Averaging> averagings_;  // by device of the first learner
  std::vector<uint8_t> is_touched_;    // by group

  // Since `begin`:
  std::vector<Before> before_;
  std::vector<int64_t> trained_before_, frozen_before_;
  std::vector<Averaging> averagings_before_;
};

}  // namespace bow::planner
