// Devices and channels: the places that a transfer or a sum over devices occupies, and its duration.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace bow::planner {

using Time = int64_t;  // nanoseconds
constexpr Time kNever = std::numeric_limits<Time>::max();

struct Route {
  uint32_t at = 0;  // start in the list of all routes' places
  uint32_t size = 0;
  Time latency = 0;
  double ns_per_byte = 0;
};

struct Collective {
  std::vector<int32_t> places;
  Time duration = 0;
};

// Places are numbered: first devices, then channels.
class Topology {
 public:
  struct Channel {
    Time latency = 0;
    double ns_per_byte = 0;
  };

  // `routes`: by pair of devices, the numbers of channels. `sum`: duration of a sum in addition to its messages.
  Topology(int num_devices, std::vector<Channel> channels, const std::vector<std::vector<int32_t>>& routes,
           bool overlap, Time sum)
      : num_devices_(num_devices),
        channels_(std::move(channels)),
        overlap_(overlap),
        sum_(sum),
        uses_(channels_.size()) {
    for (int32_t device = 0; device < num_devices; ++device) places_.push_back(device);
    for (int source = 0; source < num_devices; ++source) {
      for (int target = 0; target < num_devices; ++target) {
        add_route(source, target, routes[static_cast<size_t>(source) * num_devices + target]);
      }
    }
  }

  int num_devices() const { return num_devices_; }
  int num_places() const { return num_devices_ + static_cast<int>(channels_.size()); }
  const int32_t* places() const { return places_.data(); }
  const Route& route(int source, int target) const {
    return routes_[static_cast<size_t>(source) * num_devices_ + target];
  }

  static Time transfer_time(const Route& route, int64_t bytes) {
    return route.latency + static_cast<Time>(std::ceil(static_cast<double>(bytes) * route.ns_per_byte));
  }

  // A ring or tree sum over devices, in ascending order; bow/planning/simulator/step_model.py has the formulas.
  Collective collective(std::span<const int32_t> members, int64_t bytes) {
    Collective sum;
    Time latency = 0;
    const size_t count = members.size();
    for (size_t index = 0; index < count; ++index) {
      const Route& hop = route(members[index], members[(index + 1) % count]);
      latency = std::max(latency, hop.latency);
      for (uint32_t place = hop.at; place < hop.at + hop.size; ++place) {
        const int32_t channel = places_[place] - num_devices_;
        if (channel >= 0 && !uses_[channel]++) sum.places.push_back(channel);
      }
    }
    std::sort(sum.places.begin(), sum.places.end());
    double ns_per_byte = 0;
    for (int32_t& place : sum.places) {
      ns_per_byte = std::max(ns_per_byte, uses_[place] * channels_[place].ns_per_byte);
      uses_[place] = 0;
      place += num_devices_;
    }
    if (!overlap_) sum.places.insert(sum.places.begin(), members.begin(), members.end());
    const auto steps = static_cast<int64_t>(2 * (count - 1));
    const auto hops = static_cast<int64_t>(2 * std::bit_width(count - 1));
    const double share = static_cast<double>(steps) / static_cast<double>(count);
    const Time ring = steps * latency + static_cast<Time>(std::ceil(share * static_cast<double>(bytes) * ns_per_byte));
    const Time tree = hops * latency + static_cast<Time>(std::ceil(static_cast<double>(2 * bytes) * ns_per_byte));
    sum.duration = sum_ + std::min(ring, tree);
    return sum;
  }

 private:
  void add_route(int32_t source, int32_t target, const std::vector<int32_t>& channels) {
    Route route;
    route.at = static_cast<uint32_t>(places_.size());
    if (!overlap_ && source != target) {
      places_.push_back(std::min(source, target));
      places_.push_back(std::max(source, target));
    }
    for (const int32_t channel : channels) {
      places_.push_back(num_devices_ + channel);
      route.latency += channels_[channel].latency;
      route.ns_per_byte = std::max(route.ns_per_byte, channels_[channel].ns_per_byte);
    }
    route.size = static_cast<uint32_t>(places_.size()) - route.at;
    routes_.push_back(route);
  }

  int num_devices_;
  std::vector<Channel> channels_;
  bool overlap_;
  Time sum_;
  std::vector<int32_t> places_;  // each device, then each route
  std::vector<Route> routes_;
  std::vector<int32_t> uses_;  // by channel; all zero between calls
};

}  // namespace bow::planner
